#!/usr/bin/env bash
# fetch_model.sh BIN REPOSITORY: tools/fetch-model takes a model from a folder, from Hugging Face's cache and from a tar file, and refuses
# what is not whole, by name and without leaving anything behind.
set -euo pipefail
export FSDP_BIN=$1
root=$2
# shellcheck source-path=SCRIPTDIR source=support.sh
source "$(dirname "$(realpath "$0")")/support.sh"
cd "$work"
# run EXPECTED_STATUS ARGUMENTS...
run() {
  local expected=$1 status=0
  shift
  "$root/tools/fetch-model" "$@" >output 2>&1 || status=$?
  [[ $status == "$expected" ]] || fail "status $status instead of $expected with: $*"
}
# refused REASON ARGUMENTS...: with one line, and without a new folder or anything hidden
refused() {
  run 2 new "${@:2}"
  says "$1"
  [[ $(wc -l <output) == 1 ]] || fail "says more than one line"
  [[ ! -e new && -z $(compgen -G "new.tmp*" || compgen -G ".fetch-model*") ]] || fail "something is left: $(ls -A)"
}
same() { # same FOLDER: has the files of the model, and they are plain files
  local name
  for name in config.json model.safetensors tokenizer.json; do
    [[ ! -L $1/$name ]] || fail "$1/$name is a link"
    cmp -s "model/$name" "$1/$name" || fail "$1/$name is not that of the model"
  done
  [[ ! -e $1/README.md ]] || fail "$1 has files that nobody needs"
}

mkdir model
cp "$root"/tests/golden/runs/llama-gqa/{config.json,model.safetensors} model
cp "$root/tests/golden/tokenizers/gpt2.json" model/tokenizer.json
echo "A model." >model/README.md

run 0 folder --from model
says "folder is a whole model of the family llama"
same folder
run 0 linked --from model --link
[[ -L linked/model.safetensors && linked/model.safetensors -ef model/model.safetensors ]] || fail "no links are made"

# Hugging Face's cache: files are links to blobs, which are called by their checksums.
cache=hub/models--org--name
mkdir -p $cache/{blobs,refs,snapshots/abc}
echo -n abc >$cache/refs/main
for file in model/*; do
  blob=$(cksum <"$file" | cut -d ' ' -f 1)
  cp "$file" "$cache/blobs/$blob"
  ln -s "../../blobs/$blob" "$cache/snapshots/abc/${file#*/}"
done
run 0 cached --from $cache
same cached
run 0 snapshot --from $cache/snapshots/abc
same snapshot

# OPT and GPT-2 have no tokenizer.json.
mkdir words
cp model/config.json model/model.safetensors words
echo '{"C": 0, "h": 1, "e": 2, "c": 3, "k": 4, "m": 5, "a": 6, "t": 7, ".": 8, "Ċ": 9, "he": 10}' >words/vocab.json
echo "h e" >words/merges.txt
echo '{"tokenizer_class": "GPT2Tokenizer"}' >words/tokenizer_config.json
run 0 of_words --from words
for file in vocab.json merges.txt tokenizer_config.json; do cmp words/$file of_words/$file || fail "$file is missing"; done

tar -czf model.tgz model
run 0 unpacked --from model.tgz
same unpacked

refused "it needs a new folder and --from PATH"
refused "none is not there" --from none
refused "--link does not go with a tar file" --from model.tgz --link
refused "hub has no config.json" --from hub
run 2 folder --from model
says "folder is there already"

broken() { rm -rf broken && cp -r model broken; }
broken && sed -i 's/"llama"/"bert"/' broken/config.json
refused "model_type \"bert\" is not supported (known are gpt2, llama" --from broken
broken && truncate --size=-100 broken/model.safetensors
refused "broken/model.safetensors is damaged" --from broken
broken && echo "version https://git-lfs.github.com/spec/v1" >broken/model.safetensors
refused "broken/model.safetensors is a pointer of Git LFS" --from broken
broken && echo "{}" >broken/adapter_config.json
refused "broken holds an adapter" --from broken
broken && rm broken/model.safetensors
refused "broken has no model.safetensors" --from broken
echo '{"weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors"}}' >broken/model.safetensors.index.json
refused "model-00001-of-00002.safetensors" --from broken
broken && sed -i 's/"num_hidden_layers": 3/"num_hidden_layers": 4/' broken/config.json
refused "model.layers.3" --from broken
says "; get the whole model"
! grep -q -- --ignore-missing output || fail "names an option of another program"
broken && rm broken/tokenizer.json
refused "broken has no tokenizer.json" --from broken
broken && echo "{}" >broken/tokenizer.json
refused "the tokenizer of broken cannot be used" --from broken
rm "$(realpath $cache/snapshots/abc/model.safetensors)"
refused "model.safetensors is a link to nothing (the download is not complete)" --from $cache
rm $cache/refs/main
refused "has no refs/main" --from $cache
# Programs of PATH serve where there is no build beside the script.
mkdir -p "$work/elsewhere/tools"
cp "$root/tools/fetch-model" "$work/elsewhere/tools"
built=$FSDP_BIN root=$work/elsewhere FSDP_BIN="" own_path=$PATH
PATH=$built:$PATH run 0 by_path --from model
PATH=$own_path
same by_path
refused "build/release/bin/fsdp-train is not a program" --from model
FSDP_BIN=/nowhere run 2 new --from model
says "/nowhere/fsdp-train is not a program"
exit $((failures > 0))
