# Mutants: copies of the library, or of a test program, that are compiled from a source file with one change. Tests on the double of CUDA must
# notice each of them. Included by the scripts every-wait and mutations, whose arguments are SOURCE BUILD [REGEX]: the project's folder, a build
# folder of Ninja with the tests, and which mutants to make.
# shellcheck shell=bash
source=$(realpath "$1") build=$(realpath "$2") chosen=${3:-.}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export OMP_NUM_THREADS=1 FSDP_CUDA_DOUBLE_DEVICES=4
on_double=tests/cuda_double/libfsdp_cuda.so
made=0 survivors=0 name=''  # of the next mutant, or empty

# Whether a test, or one case of it (NAME:CASE), fails with the mutant in $folder, and how. It is ended at its first error.
fails() {
  local name=${1%%:*} error='error: in|FAILED|fatal error|the double of CUDA:|AddressSanitizer|ThreadSanitizer: data race'
  local program=test_${name//./_} options=() status=0 killed='' waited=0 used=$build/$on_double
  [[ $1 == *:* ]] && options=(--run_test="${1#*:}")
  [[ -e $folder/$program ]] && program=$folder/$program || program=$build/tests/$program
  [[ -e $folder/${on_double##*/} ]] && used=$folder/${on_double##*/}
  LD_LIBRARY_PATH=$folder:$build/lib FSDP_CUDA_LIBRARY=$used "$program" --color_output=no "${options[@]}" >"$folder/output" 2>&1 &
  local process=$!
  while kill -0 $process 2>/dev/null && ! grep -q -E "$error" "$folder/output"; do
    sleep 0.2
    ((++waited < 900)) || break
  done
  kill -9 $process 2>/dev/null && killed=yes
  wait $process 2>/dev/null || status=$?
  if grep -m 1 -E "$error" "$folder/output" | sed "s|$source/||" | cut -c 1-110 | grep .; then return; fi
  [[ $killed ]] && echo 'it hangs' && return
  [[ $status != 0 && $status != 77 ]] && echo "it ends with status $status" && return
  return 1
}

# try_mutant FILE OLD NEW TEST...: the file gets NEW instead of OLD, which it has once. A header is compiled by the source of its name; without
# optimisation, which takes a tenth of the time. Prints the first test that fails.
try_mutant() {
  local file=$1 old=$2 new=$3 contents rest path=$folder/include/${1#lib/}
  shift 3
  contents=$(<"$source/$file") rest=${contents#*"$old"}
  if [[ $rest == "$contents" || $rest == *"$old"* ]]; then
    printf '%s has not once: %s\n' "$file" "$old"
    survivors=$((survivors + 1))
    return 0
  fi
  [[ "$file $old" =~ $chosen ]] || return 0
  made=$((made + 1))
  mkdir -p "${path%/*}"
  printf '%s\n' "${contents/"$old"/"$new"}" >"$path"
  local compiled=${file/%.hpp/.cpp} product output
  case $file in
    lib/kernels/cuda/tensor_*) compiled=lib/kernels/cuda/tensor_attention.cu product=tests/test_kernels_cuda_twin_attention_double ;;
    lib/kernels/device_kernels.hpp) compiled=lib/kernels/cuda/gemm.cpp product=$on_double ;;
    lib/kernels/rows/tape.hpp) compiled=lib/kernels/rows/cuda.cu product=$on_double ;;
    lib/kernels/rows/*) compiled=lib/kernels/rows/cuda.cu product=tests/test_kernels_cuda_twin_double ;;
    lib/device/cuda/* | lib/kernels/cuda/* | lib/comm/nccl/nccl_groups.cpp) product=$on_double ;;
    *) product=$(cd "$build" && echo lib/libfsdp.so.*.*.*) ;;
  esac
  output=$folder/${product##*/}
  [[ $product != lib/* ]] || output=${output%.*} # the SONAME

  # What the compiler reads is the source, or a file that includes it: the double has one for each .cu, and a unity build one for several sources.
  local unit mutated=$path compile link object
  unit=$(grep -l -F "\"$source/$compiled\"" "$build"/lib/CMakeFiles/fsdp.dir/Unity/*.cxx "$build"/tests/cuda_double/fsdp_kernels_on_double_*.cpp \
    2>/dev/null) || [[ $unit ]] || unit=$source/$compiled  # without a unity build, grep misses a file
  if [[ $unit != "$source/$file" ]]; then
    mutated=$folder/unit.cpp
    sed "s|\"$source/$file\"|\"$path\"|" "$unit" >"$mutated"
  fi
  compile=$(ninja -C "$build" -t commands "$product" | grep -F -e " -c $unit" | tail -n 1)
  object=${compile##* -o } object=${object%% *}
  compile=${compile//"$object"/"$folder/mutant.o"} compile=${compile/ -I/ -I$folder/include -I}
  link=$(ninja -C "$build" -t commands "$product" | tail -n 1)
  link=${link//"$object"/"$folder/mutant.o"} link=${link//"-o $product"/"-o $output"}
  rm -f "$folder"/libfsdp* "$folder"/test_*
  (cd "$build" && eval "${compile/" -c $unit"/" -c $mutated"} -Wno-error -O0" && eval "$link") >"$folder/output" 2>&1 ||
    { cat "$folder/output"; exit 1; }
  rm "$path"
  local test how='' began=$SECONDS
  for test in "$@"; do
    how=$(fails "$test") && how="$test: $how" && break
    how=''
  done
  [[ $how ]] || survivors=$((survivors + 1))
  printf '%s: %s\n    %s (%d s)\n' "$file" "${name:-$old}" "${how:-NO TEST FAILS}" $((SECONDS - began))
}

# The script's last line and status.
end_of_mutants() {
  echo "$made mutants made in $SECONDS s, $survivors of them noticed by no test"
  ((survivors == 0)) && [[ $made != 0 || $chosen == none ]]
}
