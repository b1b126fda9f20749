#!/usr/bin/env bash
# Node pools of gpt2-spot: 4 × v6e 4x4, 4 nodes each.
# Written by `raytpu render --kind node-pools`. Give the cluster in the environment:
#   PROJECT=my-project CLUSTER=my-cluster LOCATION=us-east5 ZONE=us-east5-b bash gpt2-spot.node-pools.sh
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
  gcloud container node-pools create "$name" --project="$PROJECT" --cluster="$CLUSTER" \
    --location="$LOCATION" --node-locations="$ZONE" "$@"
}

for index in $(seq 0 3); do # a slice is a pool of its own
  create_pool "v6e-4x4-4t-spot-$index" \
    --machine-type=ct6e-standard-4t \
    --tpu-topology=4x4 \
    --num-nodes=0 \
    --enable-autoscaling \
    --min-nodes=0 \
    --max-nodes=4 \
    --spot
done
