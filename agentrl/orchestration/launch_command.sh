# Sets `command` to the start of a run, or to its resume if it has begun.
choose_command() {
  cd "$folder" || exit 1
  if [ -e "$runs/$name/config.toml" ]; then
    command=(agentrl train --resume "$name")
  else
    command=(agentrl train "$file" --name "$name")
  fi
  command+=(--runs-dir "$runs" --executor ray --ray-address "$address")
}
