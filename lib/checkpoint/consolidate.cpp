// Makes one whole model from a sharded checkpoint, in any format (model_format.hpp). First the format makes files without
// tensor data; then the tensor data (the "numbers") is written through one buffer of fixed size; the checksums of all blocks
// come last.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <span>
#include <type_traits>

#include <sys/stat.h>
#include <unistd.h>

#include "base/element.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/save_lock.hpp"
#include "files/output_file.hpp"

namespace fsdp {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t piece_elements = std::size_t{4} << 20;  // 16 MiB in fp32

// --- which tensors are written to which files ---

std::vector<WrittenTensor> tensors_of(const TensorSource& source, const std::vector<std::string>& states, DType type) {
  std::vector<WrittenTensor> items;
  for (const std::string& state : states)
    for (const std::string& name : source.names())
      if (source.has_state(state, name))
        items.push_back({state, name, source.state_shape(state, name), state == parameters_state ? type : DType::f32});
  return items;
}

void write_beginning(const fs::path& path, std::string_view text) {
  if (text.empty()) return;
  OutputFile output(path, OutputFile::Open::existing);
  output.write(0, text.data(), text.size());
  output.finish();
}

/// Makes all files, complete except for the tensor data and the signature. Where the signature belongs, there are zeros.
WrittenModel lay_out(const TensorSource& source, const std::vector<std::string>& states, const ConsolidateOptions& options,
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

// --- the folder in which the result is made ---

/// The folder OUT.tmp, where OUT is the path of the result. It holds a lock file and the unfinished model.
class WorkFolder {
 public:
  /// Makes the folder without access for other users, or reuses the folder of an earlier call. If anything else has that name,
  /// throws UserError and changes nothing.
  explicit WorkFolder(fs::path folder) : folder_(std::move(folder)) {
    if (::mkdir(folder_.c_str(), 0770) == 0) return;  // other users get access only to the result
    if (errno == EACCES || errno == EROFS)
      throw UserError(
          format("{} cannot be made ({}; the result is written there first); choose a folder to which you can write",
                 folder_.string(), std::strerror(errno)));
    check_errno(errno == EEXIST, "make folder " + folder_.string());
    const auto refuse = [&](const char* why) {
      throw UserError(format(
          "{} is in the way ({}; the result is written there first); move it away, or choose another name for the result",
          folder_.string(), why));
    };
    struct stat info {};
    check_errno(::lstat(folder_.c_str(), &info) == 0, "stat " + folder_.string());
    if (!S_ISDIR(info.st_mode)) refuse("it is not a folder");
    if (!is_ours(info)) refuse("it belongs to another user");
    if (::access(folder_.c_str(), W_OK | X_OK) != 0) refuse("it cannot be written to");
    is_ours_ = false;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      if (entry.path() != model() && entry.path().filename() != "lock") refuse("it has files of other programs");
      is_ours_ = true;
    }
  }
  WorkFolder(const WorkFolder&) = delete;
  /// Removes the folder if it is empty and was made by this program.
  ~WorkFolder() {
    if (is_ours_) ::rmdir(folder_.c_str());
  }
  fs::path model() const { return folder_ / "unfinished-model"; }
  /// Removes the unfinished model, if there is one. Throws RunError if it contains files that this program did not make.
  void remove_model() const {
    struct stat info {};
    if (::lstat(model().c_str(), &info) != 0) {
      check_errno(errno == ENOENT, "stat " + model().string());
    } else if (!S_ISDIR(info.st_mode)) {
      check_errno(::unlink(model().c_str()) == 0, "remove " + model().string());
    } else if (!remove_our_files(model(), is_model_file)) {
      throw RunError(format("{} holds files of other programs (they are not removed); move them away", model().string()));
    }
  }

 private:
  fs::path folder_;
  bool is_ours_ = true;  // false if the folder existed and was empty: another program may have made it
};

// --- the numbers ---

/// Returns the bytes of `values` converted to `type`. For fp32 they are `values` itself, else they are stored in `narrow`.
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
  constexpr float beyond = 65520;  // the smallest value that fp16 rounds to infinity
  for (const float value : values)
    if (std::isfinite(value) && std::abs(value) >= beyond)
      throw RunError(
          format("{} has an element {}, which fp16 cannot hold (its largest number is 65504); choose bf16 or fp32 with `type "
                 "of the result`",
                 name, value));
}

void write_numbers(const TensorSource& source, const WrittenModel& result, const ModelFormat& format,
                   const ByteProgress& progress) {
  std::size_t done = 0, all = 0;  // in bytes, as if all elements were written in fp32
  for (const WrittenTensor& item : result.tensors) all += numel(item.shape) * sizeof(float);
  std::vector<float> piece(std::min(piece_elements, all / sizeof(float)));
  std::vector<std::byte> narrow;
  for (std::size_t f = 0; f < result.files.size(); ++f) {
    OutputFile output(result.path_of(f), OutputFile::Open::existing);
    Sealer sealer(output, result.bytes[f]);
    sealer.add(0, format.signature.data(), format.signature.size());  // the file still has zeros in this place
    for (const WrittenTensor& item : result.tensors) {
      const std::size_t elements = item.file == f ? numel(item.shape) : 0;
      for (Range range; range.end < elements;) {
        range = {range.end, std::min(elements, range.end + piece_elements)};
        source.read_to_use(item.state, item.name, range, piece.data());
        const auto values = std::span(piece).first(range.size());
        if (item.type == DType::f16) require_fp16(values, item.name);
        const std::span<const std::byte> bytes = as_stored(item.type, values, narrow);
        const std::uint64_t at = item.offset + range.begin * size_of(item.type);
        output.write(at, bytes.data(), bytes.size());
        sealer.add(at, bytes.data(), bytes.size());
        if (progress) progress(done += range.size() * sizeof(float), all);
      }
    }
    if (format.seal_follows)
      sealer.finish();
    else
      write_text_file_durably(seal_beside(result.path_of(f)), sealer.trailer());
    output.finish();
  }
}

void require_absent(const fs::path& target) {
  if (fs::symlink_status(target).type() != fs::file_type::not_found)
    throw UserError(format("{} exists (it is not overwritten); remove it, or choose another name", target.string()));
}

Consolidated write_result(const TensorSource& source, const fs::path& target, const WorkFolder& work,
                          const ConsolidateOptions& options, const ByteProgress& progress) {
  const std::vector<std::string> states = consolidated_states(source, options);
  work.remove_model();
  std::size_t bytes = 0;
  for (const WrittenTensor& item : tensors_of(source, states, options.type)) bytes += item.bytes();
  require_free_space(work.model().parent_path(), bytes);
  try {
    const WrittenModel result = lay_out(source, states, options, work.model());
    write_numbers(source, result, *options.format, progress);
    write_beginning(result.path, options.format->signature);
    Consolidated done;
    if (options.format->finish) options.format->finish(source, options, result, done);
    rename_durably(result.path, target);
    return done;
  } catch (...) {
    try {
      work.remove_model();
    } catch (const std::exception&) {  // the user sees the first error, not this one
    }
    throw;
  }
}

RunError could_not_write(const fs::path& target, const std::exception& error) {
  return RunError(format("{} could not be written ({}); free some space or check the disk, and start again", target.string(),
                         error.what()));
}

}  // namespace

std::vector<std::string> consolidated_states(const TensorSource& source, const ConsolidateOptions& options) {
  if (!options.with_optimizer) return {parameters_state};
  if (source.states().size() < 2)
    throw UserError(format("{} has no optimizer states ({} has none); leave out `states of the optimizer`",
                           source.description(), source.checkpoint()->header().optimizer));
  return source.states();
}

Consolidated consolidate(const TensorSource& source, const fs::path& out, const ConsolidateOptions& options,
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
    require_absent(target);  // another process may have made the target in the meantime
    return write_result(source, target, folder, options, progress);
  } catch (const CallError& error) {
    throw could_not_write(target, error);
  } catch (const fs::filesystem_error& error) {
    if (error.code() == std::errc::permission_denied || error.code() == std::errc::read_only_file_system)
      throw UserError(format("{} cannot be made ({}); choose a folder to which you can write", target.string(), error.what()));
    throw could_not_write(target, error);
  }
}

}  // namespace fsdp
