#!/usr/bin/env bash
# Node pools of gpt2-queue: 2 × v6e 2x4, 1 node each.
# Written by `raytpu render --kind node-pools`. Give the cluster in the environment:
#   PROJECT=my-project CLUSTER=my-cluster LOCATION=us-east5 ZONE=us-east5-b bash gpt2-queue.node-pools.sh
set -euo pipefail

: "${PROJECT:?the Google Cloud project}"
: "${CLUSTER:?the name of the GKE cluster}"
: "${LOCATION:?the region or zone of the GKE cluster}"
: "${ZONE:?the zone of the TPUs; gcloud compute tpus locations list}"

create_pool() {
  local name="$1"
  shift
  if gcloud container node-pools describe "$name" --project="$PROJECT" --cluster="$CLUSTER" \
    --location="$LOCATION" >/dev/null 2>&1; then
    echo "$name is there already"
    return
  fi
  gcloud beta container node-pools create "$name" --project="$PROJECT" --cluster="$CLUSTER" \
    --location="$LOCATION" --node-locations="$ZONE" "$@"
}

create_pool v6e-2x4-8t-flex \
  --machine-type=ct6e-standard-8t \
  --num-nodes=0 \
  --enable-autoscaling \
  --total-min-nodes=0 \
  --total-max-nodes=2 \
  --location-policy=ANY \
  --flex-start \
  --enable-queued-provisioning \
  --reservation-affinity=none \
  --no-enable-autorepair \
  --accelerator-network-profile=auto \
  --node-labels=cloud.google.com/gke-networking-dra-driver=true
