#!/usr/bin/env bash
# A Kubernetes service account whose pods may read and write a bucket (Workload Identity): what
# cluster.service_account names. Safe to run again.
#   PROJECT=my-project BUCKET=my-bucket NAMESPACE=research SERVICE_ACCOUNT=trainer bash deploy/gke/allow-bucket.sh
set -euo pipefail

: "${PROJECT:?the Google Cloud project of the cluster}"
: "${BUCKET:?the bucket, without gs://}"
: "${NAMESPACE:?the namespace of the pods: cluster.namespace}"
: "${SERVICE_ACCOUNT:?the name of the Kubernetes service account: cluster.service_account}"

kubectl create namespace "$NAMESPACE" --dry-run=client --output=yaml | kubectl apply --server-side -f -
kubectl create serviceaccount "$SERVICE_ACCOUNT" --namespace "$NAMESPACE" --dry-run=client --output=yaml |
  kubectl apply --server-side -f -

number="$(gcloud projects describe "$PROJECT" --format='value(projectNumber)')"
pool="projects/$number/locations/global/workloadIdentityPools/$PROJECT.svc.id.goog"
gcloud storage buckets add-iam-policy-binding "gs://$BUCKET" --project="$PROJECT" \
  --role=roles/storage.objectUser \
  --member="principal://iam.googleapis.com/$pool/subject/ns/$NAMESPACE/sa/$SERVICE_ACCOUNT"
