# Ray on the nodes of a Slurm job; then what `launch_command.sh` says, until it ends or time is up.
set -uo pipefail
export PATH=$programs:$PATH RAY_USAGE_STATS_ENABLED=0
export RAY_AUTH_MODE=token  # who else reaches the nodes may not use the cluster
RAY_AUTH_TOKEN=$(od -An -N 16 -tx1 /dev/urandom | tr -d ' \n'); export RAY_AUTH_TOKEN
unset RAY_ADDRESS
head=${SLURMD_NODENAME:-$(hostname -s)}  # this script runs on it
ip=${AGENTRL_HEAD_IP:-$(hostname -I | cut -d ' ' -f 1)}
port=$((20000 + SLURM_JOB_ID % 10000))
address=$ip:$port
temp=/tmp/agentrl-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}
child= code=0 asked= rays=()

end_child() { [ -z "$child" ] || kill -TERM "$child" 2> /dev/null; }
end_ray() {
  trap '' TERM INT USR1
  end_child
  [ "${#rays[@]}" = 0 ] || kill -TERM "${rays[@]}" 2> /dev/null
  wait
  if [ "$code" = 0 ]; then  # otherwise Ray's logs are of use
    srun --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 rm -rf "$temp"
  fi
}
trap end_ray EXIT
trap 'asked=again; end_child' USR1
trap 'asked=end; end_child' TERM INT

supervise() {  # run a command that ends when this script is asked to end
  [ "$code" = 0 ] || return
  [ -z "$asked" ] || { code=143; return; }
  "$@" &
  child=$!
  wait "$child"; code=$?
  while kill -0 "$child" 2> /dev/null; do wait "$child"; code=$?; done
  child=
}
join_devices() { local IFS=,; echo "$*"; }
start_ray() {  # SRUN_OPTION... -- COMMAND...
  local options=(--cpus-per-task="$cpus")
  [ "$gpus" = 0 ] || options+=(--gpus-per-node="$gpus")
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  srun "${options[@]}" "$@" --num-cpus="$cpus" --block &
  rays+=($!)
}

devices=() own=(env)
if [ "$server_gpus" != 0 ]; then
  IFS=, read -ra all <<< "${CUDA_VISIBLE_DEVICES:-$(seq -s , 0 $((gpus - 1)))}"
  devices=(env CUDA_VISIBLE_DEVICES="$(join_devices "${all[@]:server_gpus}")")
  own=(env CUDA_VISIBLE_DEVICES="$(join_devices "${all[@]:0:server_gpus}")")
fi
start_ray --nodes=1 --ntasks=1 --nodelist="$head" -- "${devices[@]}" \
  ray start --head --node-ip-address="$ip" --port="$port" --temp-dir="$temp" \
  --min-worker-port=0 --max-worker-port=0 --include-dashboard=false \
  --num-gpus=$((gpus - server_gpus))
is_head_up() { (: < "/dev/tcp/$ip/$port") 2> /dev/null; }
until is_head_up || [ -n "$asked" ] || [ "$SECONDS" -gt "$join_s" ]; do
  kill -0 "${rays[0]}" 2> /dev/null || break
  sleep 0.2
done
if [ "$nodes" -gt 1 ]; then
  start_ray --nodes=$((nodes - 1)) --ntasks=$((nodes - 1)) --ntasks-per-node=1 \
    --exclude="$head" -- ray start --address="$address" --temp-dir="$temp" \
    --min-worker-port=0 --max-worker-port=0 --num-gpus="$gpus"
fi
wait_for_nodes='import sys; from agentrl.orchestration.ray_cluster import wait_for_nodes as wait
sys.exit(wait(sys.argv[1], *map(int, sys.argv[2:])))'
supervise python -c "$wait_for_nodes" "$address" "$nodes" "$join_s" "${rays[@]}"

choose_command
supervise "${own[@]}" "${command[@]}"
if [ "$asked" = again ] && [ "$code" != 0 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
