#!/usr/bin/env bash
# A GKE cluster for raytpu, without TPUs: those are node pools, made by `raytpu render FILE --kind node-pools`.
#   PROJECT=my-project CLUSTER=my-cluster LOCATION=us-east5 bash deploy/gke/create-cluster.sh
set -euo pipefail

: "${PROJECT:?the Google Cloud project}"
: "${CLUSTER:?a name for the GKE cluster}"
: "${LOCATION:?a region that has the TPUs you want; gcloud compute tpus locations list}"

# The default pool is for heads and operators: four CPUs for a head, and room for KubeRay and Kueue.
# Workload Identity and the bucket driver are for cluster.service_account and cluster.gcsfuse; Dataplane V2 is for
# cluster.multislice_network, and cannot be turned on later.
gcloud container clusters create "$CLUSTER" --project="$PROJECT" --location="$LOCATION" \
  --release-channel=rapid \
  --machine-type=e2-standard-8 --num-nodes=1 \
  --enable-autoscaling --total-min-nodes=1 --total-max-nodes=6 \
  --workload-pool="$PROJECT.svc.id.goog" \
  --addons=GcsFuseCsiDriver \
  --enable-dataplane-v2

gcloud container clusters get-credentials "$CLUSTER" --project="$PROJECT" --location="$LOCATION"
