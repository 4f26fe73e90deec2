// Makes one whole model of a sharded checkpoint, in any format (model_format.hpp). First the format makes the files with
// everything but the numbers; then the numbers stream, through one buffer of fixed size, to where they belong, and the
// checksums of all blocks come last. A journal (journal.hpp) has the checksum of every piece that was written, so that a run
// that was killed is gone on with: what is on the disk is compared with it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <type_traits>

#include <nlohmann/json.hpp>

#include "base/element.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "base/version.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/journal.hpp"
#include "checkpoint/save_lock.hpp"
#include "checkpoint/stored.hpp"
#include "files/input_file.hpp"
#include "files/output_file.hpp"

namespace fsdp {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t piece_elements = std::size_t{4} << 20;  // 16 MiB

// --- what is written where ---

std::vector<WrittenTensor> tensors_of(const TensorSource& source, const std::vector<std::string>& states, DType type) {
  std::vector<WrittenTensor> items;
  for (const std::string& state : states)
    for (const std::string& name : source.names())
      if (source.has_state(state, name))
        items.push_back({state, name, source.state_shape(state, name), state == parameters_state ? type : DType::f32});
  return items;
}

struct Total {
  std::size_t done = 0, all = 0;  // bytes as fp32
  explicit Total(const std::vector<WrittenTensor>& items) {
    for (const WrittenTensor& item : items) all += numel(item.shape) * sizeof(float);
  }
  std::size_t largest_piece() const { return std::min(piece_elements, all / sizeof(float)); }
};

/// Calls handle(range) for consecutive pieces of a tensor, and reports.
template <class Handle>
void in_pieces(const WrittenTensor& item, Total& total, const ByteProgress& progress, Handle&& handle) {
  for (std::size_t at = 0; at < numel(item.shape); at += piece_elements) {
    const Range range{at, std::min(numel(item.shape), at + piece_elements)};
    handle(range);
    total.done += range.size() * sizeof(float);
    if (progress) progress(total.done, total.all);
  }
}

void write_beginning(const fs::path& path, std::string_view text) {
  if (text.empty()) return;
  OutputFile output(path, OutputFile::Open::existing);
  output.write(0, text.data(), text.size());
  output.finish();
}

/// All files, with everything but the numbers and the signature.
WrittenModel lay_out(const CheckpointReader& source, const std::vector<std::string>& states, const ConsolidateOptions& options,
                     const fs::path& path) {
  const ModelFormat& format = *options.format;
  WrittenModel model = {path, {}, {}, tensors_of(source, states, options.type)};
  if (format.is_file) fs::create_directory(path);
  format.lay_out(source, options, model);
  for (const std::string& name : model.files)
    expect(format.is_file ? format.is_file(name) : name.empty(), "a format knows the files that it makes");
  write_beginning(path, std::string(format.signature.size(), '\0'));
  return model;
}

/// Whether `model`, which an earlier call began, has the files of `result` with the same bytes wherever no numbers go. Throws
/// CallError if the disk cannot say.
bool was_laid_out(const WrittenModel& result, const fs::path& model) {
  for (std::size_t f = 0; f < result.files.size(); ++f) {
    const fs::path path = result.files[f].empty() ? model : model / result.files[f];
    const InputFile expected(result.path_of(f));
    const auto size = size_of_file(path);
    if (!size || *size < expected.size()) return false;
    const InputFile found(path);
    std::vector<char> a, b;
    const auto same_up_to = [&](std::uint64_t begin, std::uint64_t end) {
      a.resize(end - begin), b.resize(end - begin);
      expected.read(begin, a.data(), a.size());
      found.read(begin, b.data(), b.size());
      return a == b;
    };
    std::uint64_t at = 0;
    for (const WrittenTensor& item : result.tensors) {
      if (item.file != f) continue;
      if (item.offset > at && !same_up_to(at, item.offset)) return false;
      at = item.offset + item.bytes();
    }
    if (at < expected.size() && !same_up_to(at, expected.size())) return false;
  }
  return true;
}

// --- what makes two calls the same ---

/// What makes two calls the same: every byte of the checkpoint, by its marker, which has the checksums of all files; what is
/// asked for; and this program.
nlohmann::ordered_json identity_of(const CheckpointReader& source, const ConsolidateOptions& options) {
  const std::string marker = read_text_file(source.folder() / stored::marker_name);
  return {{"checkpoint", checksum_text(checksum(marker.data(), marker.size()))},
          {"verified", source.verifies()},
          {"program", version_string()},
          {"hdf5", h5::library_version()},
          {"format", options.format->name},
          {"dtype", name_of(options.type)},
          {"max_shard_bytes", options.max_shard_bytes},
          {"with_optimizer", options.with_optimizer}};
}

// --- the numbers ---

/// The bytes of `values` as `type`, which may be those of `values`; else they are in `narrow`.
std::span<const std::byte> as_stored(DType type, std::span<const float> values, std::vector<std::byte>& narrow) {
  return with_element(type, [&]<class E>() -> std::span<const std::byte> {
    if constexpr (std::is_same_v<E, float>) {
      return std::as_bytes(values);
    } else {
      narrow.resize(values.size() * sizeof(E));
      auto* to = reinterpret_cast<E*>(narrow.data());
      for (const float value : values) *to++ = E(value);
      return narrow;
    }
  });
}

void require_fp16(std::span<const float> values, const std::string& name) {
  constexpr float beyond = 65520;  // rounds to infinity
  for (const float value : values)
    if (std::isfinite(value) && std::abs(value) >= beyond)
      throw RunError(format(
          "{} has an element {}, which fp16 cannot hold (its largest is 65504); choose bf16 or fp32 with `type of the result`",
          name, value));
}

/// Returns the bytes that were there already.
std::size_t write_numbers(const CheckpointReader& source, const WrittenModel& result, const ModelFormat& format,
                          Journal& journal, const ByteProgress& progress) {
  Total total(result.tensors);
  std::vector<float> piece(total.largest_piece());
  std::vector<std::byte> narrow, there;
  std::size_t k = 0, kept = 0;
  for (std::size_t f = 0; f < result.files.size(); ++f) {
    OutputFile output(result.path_of(f), OutputFile::Open::existing);
    if (output.size() > result.bytes[f]) output.resize(result.bytes[f]);  // an earlier call had come to the checksums
    Sealer sealer(output, result.bytes[f]);
    sealer.add(0, format.signature.data(), format.signature.size());  // as it will be
    for (const WrittenTensor& item : result.tensors) {
      if (item.file != f) continue;
      in_pieces(item, total, progress, [&](Range range) {
        const std::uint64_t at = item.offset + range.begin * size_of(item.type), size = range.size() * size_of(item.type);
        if (journal.has(k) && at + size <= output.size()) {
          there.resize(size);
          output.read(at, there.data(), there.size());
          if (journal.has(k, there)) {
            sealer.add(at, there.data(), there.size());
            kept += there.size();
            ++k;
            return;
          }
        }
        source.read_to_use(item.state, item.name, range, piece.data());
        const auto values = std::span(piece).first(range.size());
        if (item.type == DType::f16) require_fp16(values, item.name);
        const std::span<const std::byte> bytes = as_stored(item.type, values, narrow);
        output.write(at, bytes.data(), bytes.size());
        sealer.add(at, bytes.data(), bytes.size());
        journal.note(k++, bytes);
      });
    }
    if (format.seal_follows)
      sealer.finish();
    else
      write_text_file_durably(seal_beside(result.path_of(f)), sealer.trailer());
    output.finish();
  }
  return kept;
}

void require_absent(const fs::path& target) {
  if (fs::symlink_status(target).type() != fs::file_type::not_found)
    throw UserError(format("{} exists (it is not overwritten); remove it, or choose another name", target.string()));
}

Consolidated write_result(const CheckpointReader& source, const fs::path& target, const WorkFolder& work,
                          const ConsolidateOptions& options, const ByteProgress& progress) {
  const std::vector<std::string> states = consolidated_states(source, options);
  const nlohmann::ordered_json identity = identity_of(source, options);
  Consolidated done;
  WrittenModel result;
  std::unique_ptr<Journal> journal = Journal::find(work.journal(), identity);
  if (journal) {
    work.remove(work.layout());
    result = lay_out(source, states, options, work.layout());
    const bool goes_on = was_laid_out(result, work.model());
    work.remove(work.layout());
    if (!goes_on) journal.reset();
  }
  if (!journal) {
    work.clear();
    journal = Journal::begin(work.journal(), identity);
    std::size_t bytes = 0;
    for (const WrittenTensor& item : tensors_of(source, states, options.type)) bytes += item.bytes();
    require_free_space(work.journal().parent_path(), bytes);
    result = lay_out(source, states, options, work.model());
  }
  result.path = work.model();
  done.kept_bytes = write_numbers(source, result, *options.format, *journal, progress);
  write_beginning(result.path, options.format->signature);
  if (options.format->finish) options.format->finish(source, options, result, done);
  rename_durably(result.path, target);
  work.clear();
  return done;
}

RunError could_not_write(const fs::path& target, const fs::path& work, const std::exception& error) {
  return RunError(format(
      "{} could not be written ({}); free some space or see to the disk, and start again, which goes on with what is in {}; or "
      "remove that, and choose another place",
      target.string(), error.what(), work.string()));
}

}  // namespace

std::vector<std::string> consolidated_states(const CheckpointReader& source, const ConsolidateOptions& options) {
  if (!options.with_optimizer) return {parameters_state};
  if (source.states().size() < 2)
    throw UserError(format("{} has no state of an optimizer ({} kept none); leave out `states of the optimizer`",
                           source.description(), source.header().optimizer));
  return source.states();
}

Consolidated consolidate(const CheckpointReader& source, const fs::path& out, const ConsolidateOptions& options,
                         const ByteProgress& progress) {
  if (options.format->check) options.format->check(options);
  const fs::path target = out.has_filename() ? out : out.parent_path();  // without a final slash
  require_absent(target);
  fs::path work = target;
  work += ".tmp";
  try {
    if (target.has_parent_path()) fs::create_directories(target.parent_path());
    const WorkFolder folder(work);
    const SaveLock lock(work, /*patience_s=*/0);
    require_absent(target);  // another process may just have made it
    return write_result(source, target, folder, options, progress);
  } catch (const CallError& error) {
    throw could_not_write(target, work, error);
  } catch (const fs::filesystem_error& error) {
    if (error.code() == std::errc::permission_denied || error.code() == std::errc::read_only_file_system)
      throw UserError(format("{} cannot be made ({}); choose a place where you may write", target.string(), error.what()));
    throw could_not_write(target, work, error);
  }
}

}  // namespace fsdp
