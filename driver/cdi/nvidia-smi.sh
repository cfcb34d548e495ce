#!/bin/sh
# A fake nvidia-smi: shows the fake GPUs that this container was given, from its environment alone.
# Needs a POSIX shell (busybox is enough), env, sort, tr and date. Layouts and exit codes follow the real program.
# Each variable GPU_DRA_DEVICE_* holds key=value pairs with ';' between them.
# shellcheck disable=SC2034 # what load sets is read through the names of the keys
set -uf

newline='
'
version=${GPU_DRA_DRIVER_VERSION:-N/A}
cuda=${GPU_DRA_CUDA_VERSION:-N/A}
select=all
count=0

usage() {
  cat_lines \
    "NVIDIA System Management Interface (fake, of gpu-dra) -- v$version" \
    "" \
    "nvidia-smi [OPTION ...]" \
    "  -h, --help                 Print usage information and exit." \
    "      --version              Print the versions and exit." \
    "  -L, --list-gpus            List the GPUs of this container." \
    "  -q, --query                Show details of each GPU." \
    "  -i, --id=ID[,ID ...]       Only these GPUs, by index, UUID or PCI bus id." \
    "      --query-gpu=FIELD,...  Show the fields, with --format=csv[,noheader][,nounits]."
}

cat_lines() {
  printf '%s\n' "$@"
}

fail() { # status message
  printf '%s\n' "$2"
  exit "$1"
}

devices() { # the values of all device variables, by GPU and placement
  env | sort -t= -k3,3n -k4,4n | while IFS= read -r line; do
    case $line in
      GPU_DRA_DEVICE_*=*) printf '%s\n' "${line#*=}" ;;
    esac
  done
}

load() { # pairs: sets one variable for each key
  index='' start='' uuid='' minor='' name=Unknown brand=Unknown architecture=Unknown memory='' pci='' compute=''
  mig_mode='' mig='' profile='' mig_memory='' gi='' ci=''
  old=$IFS IFS=';'
  for pair in $1; do
    value=${pair#*=}
    case ${pair%%=*} in
      index) index=$value ;; start) start=$value ;; uuid) uuid=$value ;; minor) minor=$value ;;
      name) name=$value ;; brand) brand=$value ;; architecture) architecture=$value ;;
      memory) memory=$value ;; pci) pci=$value ;; compute) compute=$value ;; mig_mode) mig_mode=$value ;;
      mig) mig=$value ;; profile) profile=$value ;; mig_memory) mig_memory=$value ;; gi) gi=$value ;; ci) ci=$value ;;
    esac
  done
  IFS=$old
  bus=$(printf '%s' "$pci" | tr 'a-f' 'A-F')
  case $bus in
    ????:*) bus=0000$bus ;;
  esac
}

# Calls "$1" for each GPU that was asked for and "$2" for each MIG device of it; both read what load set, the GPU's
# number in this container ($gpu) and the MIG device's number on it ($number).
each() {
  gpu=-1 number=-1 last='' shown=no
  old_ifs=$IFS IFS=$newline
  for device in $list; do
    IFS=$old_ifs
    load "$device"
    if [ "$uuid" != "$last" ]; then
      gpu=$((gpu + 1)) number=-1 last=$uuid
      if selected; then shown=yes; "$1"; else shown=no; fi
    fi
    if [ -n "$mig" ]; then
      number=$((number + 1))
      [ "$shown" = no ] || "$2"
    fi
  done
  IFS=$old_ifs
}

selected() {
  [ "$select" != all ] || return 0
  case ",$select," in
    *",$gpu,"* | *",$uuid,"* | *",$pci,"* | *",$bus,"*) return 0 ;;
  esac
  return 1
}

nothing() { :; }
counted() { count=$((count + 1)); }
or_na() { printf '%s' "${1:-N/A}"; }

list_gpu() { printf 'GPU %d: %s (UUID: %s)\n' "$gpu" "$name" "$uuid"; }
list_mig() { printf '  MIG %-12sDevice %2d: (UUID: %s)\n' "$profile" "$number" "$mig"; }

# --- --query-gpu ------------------------------------------------------------------------------------------------------

field() { # name: sets value and unit; fails if there is no such field
  unit=''
  case $1 in
    timestamp) value=$(date '+%Y/%m/%d %H:%M:%S.000') ;;
    index) value=$gpu ;;
    count) value=$count ;;
    name | gpu_name) value=$name ;;
    uuid | gpu_uuid) value=$uuid ;;
    minor_number) value=$minor ;;
    driver_version) value=$version ;;
    pci.bus_id | gpu_bus_id) value=$bus ;;
    compute_cap) value=$compute ;;
    memory.total) value=$memory unit=MiB ;;
    memory.free) value=$memory unit=MiB ;;
    memory.used | memory.reserved) value=0 unit=MiB ;;
    utilization.gpu | utilization.memory) value=0 unit=% ;;
    temperature.gpu) value=30 ;;
    power.draw) value=70.00 unit=W ;;
    mig.mode.current | mig.mode.pending) value=$mig_mode ;;
    pstate) value=P0 ;;
    compute_mode) value=Default ;;
    persistence_mode | display_mode | display_active | display_attached) value=Disabled ;;
    power.limit | serial | gpu_serial | fan.speed | vbios_version | addressing_mode) value='' ;;
    clocks.sm | clocks.current.sm | clocks.mem | clocks.current.memory) value='' ;;
    ecc.errors.*) value=0 ;;
    *) return 1 ;;
  esac
}

query_row() {
  row=''
  old_row=$IFS IFS=,
  for asked in $fields; do
    IFS=$old_row
    field "$asked" || fail 2 "Field \"$asked\" is not a valid field to query."
    if [ -z "$value" ]; then
      value='[N/A]'
    elif [ -n "$unit" ] && [ "$units" = yes ]; then
      value="$value $unit"
    fi
    row="$row, $value"
  done
  IFS=$old_row
  printf '%s\n' "${row#, }"
}

query_header() {
  row=''
  old_row=$IFS IFS=,
  for asked in $fields; do
    IFS=$old_row
    field "$asked" || fail 2 "Field \"$asked\" is not a valid field to query."
    row="$row, $asked${unit:+ [$unit]}"
  done
  IFS=$old_row
  [ "$header" = no ] || printf '%s\n' "${row#, }"
}

query_fields() {
  fields=$(printf '%s' "$fields" | tr -d ' ')
  header=yes units=yes csv=no
  old_fields=$IFS IFS=,
  for option in $format; do
    case $option in
      csv) csv=yes ;;
      noheader) header=no ;;
      nounits) units=no ;;
      *) fail 2 "Format \"$option\" is not recognized." ;;
    esac
  done
  IFS=$old_fields
  [ "$csv" = yes ] || fail 2 '"--format=" switch is missing. Need to specify "csv".'
  gpu=0
  load ''
  query_header
  each query_row nothing
}

# --- -q ---------------------------------------------------------------------------------------------------------------

line() { printf '    %-42s: %s\n' "$1" "$(or_na "$2")"; }
deeper() { printf '        %-38s: %s\n' "$1" "$(or_na "$2")"; }

query_gpu() {
  printf '\nGPU %s\n' "$(or_na "$bus")"
  line 'Product Name' "$name"
  line 'Product Brand' "$brand"
  line 'Product Architecture' "$architecture"
  line 'Persistence Mode' Disabled
  printf '    MIG Mode\n'
  deeper Current "$mig_mode"
  deeper Pending "$mig_mode"
  line 'GPU UUID' "$uuid"
  line 'Minor Number' "$minor"
  printf '    PCI\n'
  deeper 'Bus Id' "$bus"
  line 'Performance State' P0
  printf '    FB Memory Usage\n'
  deeper Total "${memory:+$memory MiB}"
  deeper Used '0 MiB'
  deeper Free "${memory:+$memory MiB}"
  line 'Compute Mode' Default
  printf '    Utilization\n'
  deeper GPU '0 %'
  deeper Memory '0 %'
  line 'Processes' None
}

query_mig() {
  printf '    MIG Device\n'
  deeper Index "$number"
  deeper 'GPU Instance ID' "$gi"
  deeper 'Compute Instance ID' "$ci"
  deeper Profile "$profile"
  deeper UUID "$mig"
  deeper 'FB Memory Total' "${mig_memory:+$mig_memory MiB}"
}

query() {
  printf '\n==============NVSMI LOG==============\n\n'
  printf '%-46s: %s\n' Timestamp "$(date)" 'Driver Version' "$version" 'CUDA Version' "$cuda"
  printf '\n%-46s: %s\n' 'Attached GPUs' "$count"
  each query_gpu query_mig
}

# --- the table --------------------------------------------------------------------------------------------------------

table_gpu() {
  printf '| %3d  %-27.27s %6s | %18s %3s | %20s |\n' "$gpu" "$name" Off "$(or_na "$bus")" Off 0
  printf '| %3s  %4s  %4s %15s / %4s  | %6sMiB / %6sMiB %1s| %7s %12s |\n' \
    N/A 30C P0 70W N/A 0 "$(or_na "$memory")" ' ' 0% Default
  printf '| %39s | %22s | %20s |\n' '' '' "$(or_na "$mig_mode")"
  printf '+-----------------------------------------+------------------------+----------------------+\n'
}

table_mig() {
  migs="$migs$(printf '| %2d  %3s %3s %3d  | %-10.10s %6sMiB / %6sMiB | %3s  %3s  | %-21s |' \
    "$gpu" "$(or_na "$gi")" "$(or_na "$ci")" "$number" "$profile" 0 "$(or_na "$mig_memory")" N/A 0 '')$newline"
}

table() {
  date
  migs=''
  wide='+-----------------------------------------------------------------------------------------+'
  cat_lines "$wide" \
    "$(printf '| NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %-8s |' "$version" "$version" "$cuda")" \
    '+-----------------------------------------+------------------------+----------------------+' \
    '| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |' \
    '| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |' \
    '|                                         |                        |               MIG M. |' \
    '|=========================================+========================+======================|'
  each table_gpu table_mig
  if [ -n "$migs" ]; then
    cat_lines '' "$wide" \
      '| MIG devices:                                                                            |' \
      '+------------------+----------------------------------+-----------+-----------------------+' \
      '| GPU  GI  CI  MIG | Profile             Memory-Usage | SM     Unc| CE ENC  DEC  OFA  JPG |' \
      '|      ID  ID  Dev |                                  |        ECC|                       |' \
      '|==================+==================================+===========+=======================|'
    printf '%s' "$migs"
    cat_lines '+------------------+----------------------------------+-----------+-----------------------+'
  fi
  cat_lines '' "$wide" \
    '| Processes:                                                                              |' \
    '|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |' \
    '|        ID   ID                                                               Usage      |' \
    '|=========================================================================================|' \
    '|  No running processes found                                                             |' \
    "$wide"
}

# --- the command line -------------------------------------------------------------------------------------------------

action=table format=''
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --version)
      cat_lines "NVIDIA-SMI version  : $version (fake, of gpu-dra)" "DRIVER version      : $version" \
        "CUDA Version        : $cuda"
      exit 0
      ;;
    -L | --list-gpus) action=list ;;
    -q | --query) action=query ;;
    --query-gpu=?*) action=fields fields=${1#*=} ;;
    --format=*) format=${1#*=} ;;
    --id=*) select=${1#*=} ;;
    -i)
      [ $# -gt 1 ] || fail 2 'Option "-i" needs a value.'
      shift
      select=$1
      ;;
    *) fail 2 "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help: \"$1\" is not recognized." ;;
  esac
  shift
done

list=$(devices)
each counted nothing
[ "$count" -gt 0 ] || fail 6 'No devices were found'

case $action in
  list) each list_gpu list_mig ;;
  query) query ;;
  fields) query_fields ;;
  table) table ;;
esac
