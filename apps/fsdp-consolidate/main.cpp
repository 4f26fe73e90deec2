// fsdp-consolidate: joins a sharded checkpoint into one HDF5 file or a Hugging Face folder. It is one process without MPI, and
// its memory does not grow with the model, so that it can run on login nodes.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/options.hpp"
#include "base/program.hpp"
#include "base/progress.hpp"
#include "checkpoint/adapter.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/inspect.hpp"
#include "checkpoint/tensor_source.hpp"
#include "h5/h5.hpp"
#include "job/program.hpp"
#include "options/common_options.hpp"

using namespace fsdp;

namespace {

struct Command {
  std::filesystem::path checkpoint, out;
  ConsolidateOptions how;
  bool adapter = false, merge = false;
  std::filesystem::path base;
  bool verify = false, no_verify = false, use_ema = false;
};

OptionTable consolidate_option_table(Command& o) {
  OptionTable table("fsdp-consolidate", "CHECKPOINT OUT [options]",
                    "Makes one whole model from the rank files of a checkpoint. Needs no MPI launcher, and only a few tens of "
                    "MB of memory for any size of model.");
  table.examples({"fsdp-consolidate checkpoints model.h5 --verify",
                  "fsdp-consolidate checkpoints model --format safetensors --dtype bf16",
                  "fsdp-consolidate checkpoints adapter --adapter"});
  table.group("Input");
  table.path("checkpoint", "CHECKPOINT", o.checkpoint, "A step folder, or a save folder: then its latest complete step.")
      .positional()
      .required();
  table.group("Output");
  table.path("out", "OUT", o.out, "The file (hdf5, as in model.h5) or folder (safetensors) to make. It must not exist.")
      .positional()
      .required();
  std::vector<std::pair<std::string, const ModelFormat*>> names;
  std::vector<std::string> about;
  for (const ModelFormat* row : model_formats()) {
    names.emplace_back(row->name, row);
    about.push_back(format("{}: {}.", row->name, row->about));
  }
  table.choice<const ModelFormat*>("format", o.how.format, std::move(names), format("{}", fmt::join(about, " ")));
  table
      .choice<DType>("dtype", o.how.type, dtype_names(),
                     "Type of the numbers written, rounded to nearest from the fp32 parameters.")
      .sets("type of the result");
  table
      .size("max-shard-size", "SIZE", o.how.max_shard_bytes,
            "safetensors: largest file, as in 5GB; then there are several, and model.safetensors.index.json names them.")
      .unset("one file")
      .sets("largest file");
  table
      .flag("with-optimizer", o.how.with_optimizer,
            "Also write the optimizer's states, in fp32: in HDF5 as datasets /exp_avg/NAME and so on; for safetensors in "
            "optimizer.safetensors.")
      .sets("states of the optimizer");
  table.flag("adapter", o.adapter,
             "For a checkpoint of adapters (fsdp-train --lora-rank): make a folder of PEFT with adapter_config.json and "
             "adapter_model.safetensors.");
  table.flag("merge", o.merge, "For a checkpoint of adapters: merge them into their base model, and write that model.");
  table
      .path("model", "MODEL", o.base,
            "With --merge: the base model, if it is no longer where it was when the adapters were trained.")
      .unset("the path in the checkpoint")
      .sets("base model");
  table.flag("verify", o.verify,
             "First compare the checkpoint's checksums and norms; at the end read the result back and compare it.");
  add_average_option(table, o.use_ema);
  add_no_verify_option(table, o.no_verify);
  return table;
}

/// Throws UserError if the ending of the name is not one of `format`.
void check_name(const std::filesystem::path& out, const ModelFormat& format) {
  const std::pair<std::string_view, std::string_view> not_made[] = {
      {"pt", "PyTorch's files"},  {"pth", "PyTorch's files"},   {"bin", "PyTorch's files"}, {"ckpt", "PyTorch's files"},
      {"pkl", "pickled objects"}, {"npz", "NumPy's files"},     {"npy", "NumPy's files"},   {"msgpack", "Flax's files"},
      {"onnx", "ONNX models"},    {"gguf", "llama.cpp's files"}};
  std::string ending = (out.has_filename() ? out : out.parent_path()).extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char c) { return std::tolower(c); });
  if (!ending.empty()) ending.erase(0, 1);
  for (const auto& [name, what] : not_made)
    if (ending == name)
      throw UserError(fsdp::format(
          "{} would be {} (fsdp-consolidate makes no {}); {}", out.string(), format.what, what,
          name == "gguf"
              ? "make a folder with --format safetensors, which convert_hf_to_gguf.py of llama.cpp reads"
              : "name a folder, with --format safetensors, which transformers and PyTorch read, or give a name in .h5"));
  if (ending == "safetensors")
    throw UserError(
        fsdp::format("{} would be {} (OUT names the whole result, and a file model.safetensors is made in a folder); name "
                     "the folder, with --format safetensors, or give a name in .h5",
                     out.string(), format.what));
  if (format.is_file && (ending == "h5" || ending == "hdf5"))
    throw UserError(fsdp::format("{} would be a folder (--format {} makes one); name a folder, or leave out --format",
                                 out.string(), format.name));
}

/// Throws UserError unless the options say what to make of a checkpoint of adapters, and only of that.
void check_adapters(const Command& options, const CheckpointReader& reader) {
  const bool chosen = options.adapter || options.merge;
  if (reader.header().base && !chosen)
    throw UserError(
        format("{} holds adapters of the model {} (and not that model); give --adapter for a folder of PEFT, or --merge for a "
               "whole model",
               reader.description(), reader.header().base->path));
  if (!reader.header().base && chosen)
    throw UserError(format("--{} changes nothing ({} holds a whole model, without adapters); leave it out",
                           options.adapter ? "adapter" : "merge", reader.description()));
}

int run(Command options) {
  if (options.checkpoint.empty() || options.out.empty())
    throw UserError("CHECKPOINT or OUT is missing (what to read, and where to write); see fsdp-consolidate --help");

  if (options.adapter && options.merge)
    throw UserError("--adapter and --merge are both given (each says what to make); leave one out");
  if (!options.base.empty() && !options.merge)
    throw UserError("--model changes nothing (it goes with --merge); give both, or neither");
  if (options.merge && options.how.with_optimizer)
    throw UserError(
        "--with-optimizer does not go with --merge (the optimizer's states are those of the adapters); leave it out");
  if (options.adapter) options.how.format = &peft_format();
  if (options.how.max_shard_bytes > 0 && !options.how.format->is_file)
    throw UserError(
        format("--max-shard-size changes nothing (--format {} makes one file); give --format safetensors, or leave out "
               "--max-shard-size",
               options.how.format->name));
  if (options.how.format->check) options.how.format->check(options.how);
  check_name(options.out, *options.how.format);

  std::vector<std::string> warnings;
  if (options.verify && options.no_verify)
    throw UserError(
        "--verify and --no-verify contradict each other (one compares all checksums, the other none); leave out one of them");
  const Verify verify = options.no_verify ? Verify::no : Verify::yes;
  std::unique_ptr<CheckpointReader> opened =
      open_checkpoint(options.checkpoint, &warnings, verify, options.use_ema ? Weights::average : Weights::trained);
  const CheckpointReader& checkpoint = *opened;
  check_adapters(options, checkpoint);
  const bool is_plain = !checkpoint.model().is_transformer() && !options.how.format->is_file;  // a folder without a model
  if (is_plain && options.verify && options.how.with_optimizer)
    throw UserError(
        "--verify does not compare the optimizer's states of a user's layers in safetensors; leave out --with-optimizer or "
        "--verify, or give --format hdf5");
  print_warnings(warnings);
  if (options.verify) {
    const int files = checkpoint.header().world_size + 1;
    with_progress("checksums", [&](const ByteProgress& progress) { checkpoint.verify(0, 1, progress); });
    with_progress("norms", [&](const ByteProgress& progress) { verify_norms(checkpoint, {parameters_state}, progress); });
    print_to(stdout, "{}: {} files verified\n", checkpoint.description(), files);
  }
  std::unique_ptr<TensorSource> source;
  if (options.merge) {
    warnings.clear();
    source = join_adapters(std::move(opened), options.base, {}, /*merge=*/true, &warnings, verify);
    print_warnings(warnings);
  }
  if (!source) source = std::move(opened);
  Consolidated done;
  with_progress("consolidating",
                [&](const ByteProgress& progress) { done = consolidate(*source, options.out, options.how, progress); });
  print_warnings(done.warnings);
  if (!done.copied.empty())
    print_to(stdout, "copied from {}: {}\n", done.copied_from.string(), format("{}", fmt::join(done.copied, ", ")));
  const std::vector<std::string> states = consolidated_states(*source, options.how);
  if (options.verify) {
    const auto result = options.adapter ? open_adapter(options.out, without_adapters(source->config())).tensors
                        : is_plain      ? open_plain(options.out)
                                        : open_tensor_source(options.out);
    with_progress("verifying",
                  [&](const ByteProgress& progress) { compare_sources(*source, *result, options.how.type, progress, states); });
  }
  std::size_t elements = 0;
  for (const std::string& name : source->names()) elements += numel(source->shape(name));
  print_to(stdout, "{}: {} parameters of {}, update {}{}{}\n", options.out.string(),
           format_count(static_cast<double>(elements)), source->description(), checkpoint.header().progress.update,
           states.size() > 1 ? format(", states: {}", fmt::join(states, ", ")) : "", options.verify ? ", verified" : "");
  return exit_code::done;
}

}  // namespace

int main(int argc, char** argv) {
  Command options;
  OptionTable table = consolidate_option_table(options);
  return run_program(argc, argv, table, [&] { return run(options); });
}
