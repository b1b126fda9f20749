#!/usr/bin/env bash
# KubeRay, GKE's TPU webhook and Kueue, on the cluster that kubectl is set to. Safe to run again.
#   bash deploy/gke/install-operators.sh            # without Kueue
#   KUEUE=yes bash deploy/gke/install-operators.sh
# Not for clusters with GKE's Ray add-on: it has an operator (of its own version) and the webhook already.
set -euo pipefail

# The versions that raytpu's manifests were checked against.
KUBERAY_VERSION=1.7.0
KUEUE_VERSION=v0.19.2
KUEUE="${KUEUE:-no}"

helm repo add kuberay https://ray-project.github.io/kuberay-helm/
helm repo add jetstack https://charts.jetstack.io
helm repo update

helm upgrade --install kuberay-operator kuberay/kuberay-operator --version "$KUBERAY_VERSION" \
  --namespace kuberay --create-namespace --wait

# The webhook gives every host its TPU_WORKER_ID and TPU_WORKER_HOSTNAMES, and keeps the hosts of a slice
# together. It needs a certificate (https://github.com/ai-on-gke/kuberay-tpu-webhook).
helm upgrade --install cert-manager jetstack/cert-manager \
  --namespace cert-manager --create-namespace --set crds.enabled=true \
  --set global.leaderElection.namespace=cert-manager --wait
helm upgrade --install kuberay-tpu-webhook \
  oci://us-docker.pkg.dev/ai-on-gke/kuberay-tpu-webhook-helm/kuberay-tpu-webhook --wait

if [[ "$KUEUE" == yes ]]; then
  # --server-side: annotations of a client-side apply would be too long.
  kubectl apply --server-side -f \
    "https://github.com/kubernetes-sigs/kueue/releases/download/$KUEUE_VERSION/manifests.yaml"
  kubectl wait deployment/kueue-controller-manager --namespace kueue-system \
    --for=condition=available --timeout=5m
fi
