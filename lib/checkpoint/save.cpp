// The write protocol of docs/checkpoint-format.md. Every operation that can fail on one rank only is run through agree(), so
// that either all ranks continue or all throw the same error.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <type_traits>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/element.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "base/narrow.hpp"
#include "base/timer.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/shared_files.hpp"
#include "checkpoint/stored.hpp"
#include "comm/agree.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "files/output_file.hpp"
#include "kernels/exact_sum.hpp"
#include "kernels/threads.hpp"
#include "nn/parameters.hpp"

namespace fsdp {

namespace {

namespace fs = std::filesystem;

constexpr const char* unfinished_suffix = ".tmp";
constexpr const char* save_remedy =
    "earlier checkpoints are unchanged; free some space, raise the quota, check the disk, or choose another `save folder`";

/// Runs `work`, which writes the file or folder `what`. An error of the file system becomes a RunError, which reports the size
/// of the tensors (`bytes`) and advises the user.
template <class Work>
auto writing(const fs::path& what, std::uint64_t bytes, Work&& work) {
  const auto could_not_write = [&](const std::exception& error) {
    return RunError(format("{} with {} of tensors could not be written ({}); {}", what.string(),
                           format_bytes(static_cast<double>(bytes)), error.what(), save_remedy));
  };
  try {
    return work();
  } catch (const CallError& error) {
    throw could_not_write(error);
  } catch (const fs::filesystem_error& error) {
    throw could_not_write(error);
  }
}

struct Names {
  fs::path final_folder, temporary_folder;
  Names(const fs::path& save_dir, std::uint64_t update)
      : final_folder(save_dir / stored::step_name(update)), temporary_folder(final_folder) {
    temporary_folder += unfinished_suffix;
  }
};

bool is_complete(const fs::path& folder) {
  try {
    stored::read_complete(folder);
    return true;
  } catch (const RunError&) {
    return false;
  }
}

/// Removes a folder after an error. That error is reported to the user; errors of the removal are ignored.
void remove_what_was_begun(const fs::path& folder) {
  try {
    remove_our_files(folder, stored::is_step_file);
  } catch (const std::exception&) {
  }
}

/// Prepares the save folder and makes the temporary folder, on rank 0, before any rank writes.
void prepare(const fs::path& save_dir, const Names& names, std::uint64_t bytes) {
  fs::create_directories(save_dir);
  if (is_complete(names.final_folder))
    throw UserError(
        format("{} is a complete checkpoint already (it is not overwritten); resume from it with `restoring the latest`, "
               "choose another `save folder`, or remove it",
               names.final_folder.string()));
  if (kind_of(names.final_folder / stored::marker_name) != PathKind::missing)
    throw RunError(format(
        "{} is a damaged checkpoint (it has the marker of a complete one); move it away, or choose another `save folder`",
        names.final_folder.string()));
  remove_unfinished_steps(save_dir);
  for (const fs::path& folder : {names.final_folder, names.temporary_folder})
    if (!remove_our_files(folder, stored::is_step_file)) throw RunError(text_of_step_in_the_way(folder));
  require_free_space(save_dir, bytes);
  check_errno(::mkdir(names.temporary_folder.c_str(), 0777) == 0, "make folder " + names.temporary_folder.string());
}

/// Calls f(slice) for each slice of the state that `rank` writes.
template <class F>
void each_slice(const ShardState& state, const Layout& layout, int rank, int world_size, F&& f) {
  for (const stored::WrittenSlice& slice : stored::written_slices(layout, rank, world_size, state.extent))
    if (!state.units[slice.unit].empty()) f(slice);
}

/// The part of one parameter's state that this rank writes, and the memory that holds it.
struct Piece {
  std::size_t tensor;  // the tensor's index: (index of the state) * (number of parameters) + (index of the parameter)
  std::size_t parameter;
  Extent extent;
  std::string dataset;
  Shape shape;  // of the whole tensor
  Range range;
  DType type;
  MemoryView data;
  std::size_t numel() const { return range.size(); }
  std::size_t bytes() const { return numel() * size_of(type); }
};

constexpr std::size_t piece_alignment = 64;  // of the pieces in a snapshot, in bytes

std::vector<Piece> pieces_of(std::span<const ShardState> states, const std::vector<Parameter>& parameters, const Layout& layout,
                             int rank, int world_size) {
  std::vector<Piece> pieces;
  for (std::size_t s = 0; s < states.size(); ++s)
    each_slice(states[s], layout, rank, world_size, [&](const stored::WrittenSlice& slice) {
      const ShardState& state = states[s];
      const Parameter& parameter = parameters[slice.parameter];
      const DType type = state.types[slice.unit];
      pieces.push_back({s * parameters.size() + slice.parameter, slice.parameter, state.extent,
                        stored::slice_name(state.name, parameter.name), stored::state_shape(parameter.shape, state.extent),
                        slice.range, type,
                        state.units[slice.unit].part(slice.offset * size_of(type), slice.range.size() * size_of(type))});
    });
  return pieces;
}

/// Copies the data of the pieces into `snapshot`, and returns the pieces with the copies.
std::vector<Piece> copied(std::vector<Piece> pieces, std::span<std::byte> snapshot) {
  std::size_t at = 0;
  for (Piece& piece : pieces) {
    expect(at + piece.bytes() <= snapshot.size(), "the saved data fits into the planned snapshot");
    const std::span<std::byte> copy = snapshot.subspan(at, piece.bytes());
    piece.data.read(0, copy);
    piece.data = MemoryView(copy);
    at += round_up(piece.bytes(), piece_alignment);
  }
  return pieces;
}

/// Calls f(range, values) for the piece's elements in fp32, in order: once if they are in host memory, else for parts, because
/// a copy of all of them may not fit into memory.
template <class F>
void each_part(const Piece& piece, const F& f) {
  with_element(piece.type, [&]<class E>() {
    Range part;
    std::vector<float> as_fp32;
    piece.data.visit<E>(0, piece.numel(), [&](const E* values, std::size_t n) {
      part = {part.end, part.end + n};
      if constexpr (std::is_same_v<E, float>) {
        f(part, values);
      } else {
        as_fp32.assign(values, values + n);
        f(part, static_cast<const float*>(as_fp32.data()));
      }
    });
  });
}

void require_folder(const fs::path& folder) {
  if (kind_of(folder) != PathKind::folder)
    throw UserError(
        format("{} does not exist on this rank's node (rank 0 has just made it); choose a `save folder` on a file system that "
               "all nodes share",
               folder.string()));
}

void write_rank_attributes(h5::File& file, const stored::Index& index, int rank) {
  file.write_text("format", stored::rank_kind);
  file.write_integer("format_version", stored::version);
  file.write_integer("save_id", index.save_id);
  file.write_integer("update", index.header.progress.update);
  file.write_integer("rank", static_cast<std::uint64_t>(rank));
  file.write_integer("world_size", static_cast<std::uint64_t>(index.header.world_size));
}

/// Writes this rank's file. Adds the sum of squares of each piece to the entry of its tensor in `squares`.
FileSum write_rank_file(const fs::path& path, const stored::Index& index, int rank, const std::vector<Piece>& pieces,
                        h5::Compression compression, std::vector<kernels::ExactSum>& squares) {
  require_folder(path.parent_path());
  h5::File file = h5::File::create(path);
  write_rank_attributes(file, index, rank);
  const auto stream = make_host_stream();
  std::vector<h5::KnownPart> known;
  for (const Piece& piece : pieces) {
    h5::Dataset dataset = file.create_dataset(piece.dataset, {piece.numel()}, compression);
    stored::write_slice_attributes(dataset, piece.shape, piece.range);
    RunningSum sum;
    each_part(piece, [&](Range part, const float* values) {
      kernels::add_squares(*stream, squares[piece.tensor], values, part.size());
      sum.add(values, part.size() * sizeof(float));
      dataset.write(part, values);
    });
    dataset.write_integer("xxh3_64", sum.value());
    // Data in host memory stays at its address until the file is sealed.
    const std::byte* const data = piece.type == DType::f32 && dataset.offset() ? piece.data.host() : nullptr;
    for (const auto& [offset, stored_bytes] : dataset.stored_ranges())
      known.push_back({{piece.dataset, offset, stored_bytes, sum.value()}, data});
  }
  return file.seal(std::move(known));
}

/// Writes this rank's elements into the files that it shares with other ranks.
void write_to_shared_files(const fs::path& folder, const SharedFiles& files, std::uint64_t save_id, int rank,
                           const std::vector<Piece>& pieces) {
  SharedFileWriter writer(folder, files, save_id, rank);
  try {
    for (const Piece& piece : pieces) {
      writer.begin(piece.dataset, piece.parameter, piece.extent, piece.range);
      each_part(piece, [&](Range part, const float* values) { writer.add(part, values); });
    }
    writer.finish();
  } catch (const CallError&) {
    require_folder(folder);  // asked only now: each question goes to the metadata server
    throw;
  }
}

FileSum write_index(const fs::path& path, const stored::Index& index, const std::vector<Parameter>& parameters,
                    const Layout& layout) {
  std::vector<const Unit*> unit_of(parameters.size());
  for (const Unit& unit : layout.units())
    for (const std::size_t p : unit.parameters) unit_of[p] = &unit;
  const StoredParts stored_parts(parameters, layout, index.header.world_size);
  h5::File file = h5::File::create(path);
  stored::write_index_attributes(file, index);
  for (const std::string& state : index.states)
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const auto extent = stored::extent_of(*unit_of[p], state);
      if (!extent) continue;
      const std::string& name = parameters[p].name;
      std::vector<h5::VirtualPart> parts;
      for (const auto& [range, rank] : stored_parts.of(name, *extent))
        parts.push_back({range, stored::rank_file_name(rank, index.header.world_size), stored::slice_name(state, name)});
      file.create_virtual_dataset(stored::whole_name(state, name), stored::state_shape(parameters[p].shape, *extent), parts);
    }
  if (index.header.user_data) stored::write_user_data(file, *index.header.user_data);
  return file.seal();
}

/// Writes the note by which rank 0 learns that this rank's file is on disk. The note gets its final name when it is complete;
/// it needs no fsync.
void write_note(const fs::path& path, std::uint64_t save_id, const FileSum& sum,
                const std::vector<kernels::ExactSum>& squares) {
  nlohmann::json tensors = nlohmann::json::array();
  for (std::size_t t = 0; t < squares.size(); ++t) {
    const auto* const words = reinterpret_cast<const std::int64_t*>(&squares[t]);
    const std::span<const std::int64_t> all(words, kernels::ExactSum::words);
    if (std::any_of(all.begin(), all.end(), [](std::int64_t word) { return word != 0; }))
      tensors.push_back(nlohmann::json::array({t, std::vector<std::int64_t>(all.begin(), all.end())}));
  }
  const std::string text =
      json_text(nlohmann::json{{"save_id", save_id}, {"bytes", sum.bytes}, {"checksum", sum.checksum}, {"squares", tensors}});
  fs::path temporary = path;
  temporary += unfinished_suffix;
  OutputFile(temporary).write(0, text.data(), text.size());
  check_errno(std::rename(temporary.c_str(), path.c_str()) == 0, "rename " + temporary.string());
}

/// Reads a rank's note, appends the rank file's checksum to `sums`, and adds the rank's sums of squares to `squares`. Returns
/// false if the note does not exist yet.
bool read_note(const fs::path& path, std::uint64_t save_id, std::vector<FileSum>& sums,
               std::vector<kernels::ExactSum>& squares) {
  // Opening the folder makes NFS ask its server; otherwise it may answer from its cache for a minute.
  const int folder = ::open(path.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) ::close(folder);
  if (kind_of(path) != PathKind::file) return false;
  const nlohmann::json note = read_json_file(path, std::size_t{1} << 30);
  if (!note.is_object() || note["save_id"] != save_id) return false;
  sums.push_back({note["bytes"], note["checksum"]});
  for (const nlohmann::json& tensor : note["squares"]) {
    const std::vector<std::int64_t> words = tensor[1];
    kernels::ExactSum sum;
    std::memcpy(static_cast<void*>(&sum), words.data(), sizeof sum);
    squares[tensor[0].get<std::size_t>()] += sum;
  }
  return true;
}

/// Renames the folder and writes the marker. Called on rank 0 after all files are on disk.
void complete(const Names& names, const stored::Index& index, const std::vector<FileSum>& sums, const FileSum& index_sum,
              std::map<std::string, double> norms) {
  stored::Marker marker{index.header.progress.update, index.save_id, {}, std::move(norms)};
  for (const FileSum& sum : sums)
    marker.files.push_back({stored::rank_file_name(narrow<int>(marker.files.size()), index.header.world_size), sum});
  marker.files.push_back({stored::index_name, index_sum});
  sync_folder(names.temporary_folder);
  try {
    rename_durably(names.temporary_folder, names.final_folder);
    write_text_file_durably(names.final_folder / stored::marker_name, stored::marker_text(marker));
  } catch (const std::exception&) {
    remove_what_was_begun(names.final_folder);
    throw;
  }
}

}  // namespace

void check(const UserData& data) {
  constexpr std::size_t most_characters = 100;
  for (const auto& [name, bytes] : data) {
    const auto is_allowed = [](char c) { return c >= ' ' && c <= '~' && c != '/'; };
    if (name.empty() || name.size() > most_characters || name == "." || name == ".." ||
        !std::all_of(name.begin(), name.end(), is_allowed))
      throw UserError(
          format("'{}' cannot name data in a checkpoint (a name has 1 to {} printable ASCII characters without '/'); choose "
                 "another name",
                 excerpt(name), most_characters));
    if (bytes.size() > most_user_bytes)
      throw UserError(format("the data '{}' have {} (a checkpoint holds at most {} for each name); write a file of their own",
                             name, format_bytes(static_cast<double>(bytes.size())),
                             format_bytes(static_cast<double>(most_user_bytes))));
  }
}

std::size_t snapshot_bytes(const Layout& layout, DType state_type, int rank, int world_size, bool with_average) {
  std::size_t bytes = 0;
  for (const Extent extent : {Extent::element, Extent::row, Extent::column})
    for (const stored::WrittenSlice& slice : stored::written_slices(layout, rank, world_size, extent)) {
      const Unit& unit = layout.units()[slice.unit];
      if (extent == Extent::element) bytes += round_up(slice.range.size() * size_of(unit.types.master), piece_alignment);
      if (!unit.trainable) continue;
      if (extent == Extent::element && with_average && unit.is_averaged())
        bytes += round_up(slice.range.size() * sizeof(float), piece_alignment);
      for (const StateInfo& state : unit.rule->states)
        if (state.extent == extent)
          bytes += round_up(slice.range.size() * size_of(extent == Extent::element ? state_type : DType::f32), piece_alignment);
    }
  return std::max(bytes, piece_alignment);  // a rank that writes nothing saves in the background, too, as all others do
}

void remove_unfinished_steps(const fs::path& save_dir) {
  for (const auto& entry : fs::directory_iterator(save_dir)) {
    const fs::path& path = entry.path();
    if (path.extension() == unfinished_suffix && stored::update_of_step_name(path.stem().string()))
      remove_our_files(path, stored::is_step_file);
  }
}

std::size_t step_bytes(const Layout& layout, bool with_average) {
  std::size_t elements = 0;
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    const Unit& unit = layout.units()[u];
    if (!unit.saved) continue;
    elements += unit.numel;
    if (with_average && unit.is_averaged()) elements += unit.numel;
    if (unit.trainable)
      for (const StateInfo& state : unit.rule->states)
        elements += state.extent == Extent::element ? unit.numel : layout.state_numel(u, state.extent);
  }
  return elements * sizeof(float);
}

struct CheckpointSave::Job {
  Names names;
  stored::Index index;
  std::vector<Parameter> parameters;
  const Layout& layout;
  Communicator& world;
  h5::Compression compression;
  std::function<void()> may_complete;
  std::vector<kernels::ExactSum> squares = {};  // the sum of each tensor: at first over this rank's pieces, later over all
  std::vector<Piece> pieces = {};               // of this rank
  std::uint64_t all_bytes = 0;                  // the size of all tensors
  FileSum sum = {};                             // of the file that this rank seals, after that
  FileSum index_sum = {};                       // of the index file, on rank 0
  Timer since_began = {};
  std::atomic<std::uint64_t> file_bytes = 0;  // on rank 0, set before took_s
  std::atomic<double> took_s = -1;  // time of the save; negative until the checkpoint is complete and this rank knows that
  std::atomic<Stage> stage = Stage::working;
  std::mutex mutex = {};
  std::condition_variable changed = {};
  bool finishing = false;  // set by finish(), which uses MPI instead of notes: threads stop waiting for other ranks
  std::optional<SharedFiles> shared = {};       // if several ranks write each file
  std::optional<SharedFileSealer> sealer = {};  // on the first rank of a shared file, until it has sealed the file

  int files() const { return index.header.world_size; }
  /// The rank that seals a file: the file's own, or the first of those that share it.
  int rank_of(int file) const {
    return narrow<int>(
        share(static_cast<std::size_t>(world.size()), static_cast<std::size_t>(files()), static_cast<std::size_t>(file)).begin);
  }
  /// The file that this rank seals, if any.
  std::optional<int> own_file() const {
    for (int file = 0; file < files(); ++file)
      if (rank_of(file) == world.rank()) return file;
    return std::nullopt;
  }
  fs::path path_of(int file) const { return names.temporary_folder / stored::rank_file_name(file, files()); }
  fs::path note_of(int file) const { return names.temporary_folder / stored::note_name(file, files()); }

  /// Waits until is_there() is true. Returns false if finish() was called meanwhile.
  template <class IsThere>
  bool await(const IsThere& is_there) {
    for (auto pause = std::chrono::milliseconds(1); !is_there(); pause = std::min(2 * pause, std::chrono::milliseconds(250))) {
      std::unique_lock lock(mutex);
      if (changed.wait_for(lock, pause, [&] { return finishing; })) return false;
    }
    return true;
  }
  /// The work of a rank's thread. Rank 0's thread completes the checkpoint as soon as the notes of all other files exist,
  /// because finish(), which needs no notes, may be called much later.
  void write_and_complete() {
    write();
    const std::optional<int> file = own_file();
    if (!file) return;
    bool is_written = true;
    try {
      is_written = !sealer || await([&] { return sealer->is_written(); });
    } catch (const std::exception&) {
      is_written = false;
    }
    if (!is_written) {  // finish() seals the file
      stage = Stage::stuck;
      return;
    }
    seal();
    std::vector<FileSum> sums = {sum};
    try {
      if (*file != 0) return write_note(note_of(*file), index.save_id, sum, squares);
      auto all = squares;
      for (int other = 1; other < files(); ++other)
        if (!await([&] { return read_note(note_of(other), index.save_id, sums, all); })) return;
      squares = std::move(all);
    } catch (const std::exception&) {  // finish() completes the save: it exchanges the same data by MPI
      stage = Stage::stuck;
      return;
    }
    require_permission();
    complete_step(sums);
  }
  /// Makes the file that this rank seals, if several ranks write into it.
  void create_shared() {
    const std::optional<int> file = own_file();
    if (!file) return;
    require_folder(names.temporary_folder);
    writing(path_of(*file), all_bytes, [&] {
      create_shared_file(names.temporary_folder, *shared, *file,
                         [&](h5::File& made) { write_rank_attributes(made, index, *file); });
    });
  }
  /// Seals the shared file of this rank, if there is one that is not sealed yet. All ranks must have written to it.
  void seal() {
    if (!sealer) return;
    const fs::path path = path_of(*own_file());
    sum = writing(path, std::filesystem::file_size(path), [&] { return sealer->seal(squares); });
    sealer.reset();
  }
  /// Writes what this rank writes. Rank 0 also writes the index, which contains no tensor data, so that it need not wait for
  /// other ranks.
  void write() {
    const int rank = world.rank();
    std::uint64_t bytes = 0;
    for (const Piece& piece : pieces) bytes += piece.numel() * sizeof(float);
    if (shared) {
      if (const auto file = own_file()) sealer.emplace(names.temporary_folder, *shared, *file, index.save_id);
      writing(names.temporary_folder, bytes,
              [&] { write_to_shared_files(names.temporary_folder, *shared, index.save_id, rank, pieces); });
    } else {
      sum = writing(path_of(rank), bytes,
                    [&] { return write_rank_file(path_of(rank), index, rank, pieces, compression, squares); });
    }
    if (rank != 0) return;
    const fs::path index_path = names.temporary_folder / stored::index_name;
    index_sum = writing(index_path, all_bytes,
                        [&] { return write_index(index_path, index, parameters, shared ? shared->layout() : layout); });
    if (!index.header.tokenizer_files) return;
    writing(names.temporary_folder, all_bytes, [&] {
      for (const TokenizerFile& file : *index.header.tokenizer_files) {
        OutputFile output(names.temporary_folder / file.name);
        output.write(0, file.text.data(), file.text.size());
        output.finish();
      }
    });
  }
  /// Throws RunError if a parameter has elements that are not finite: no run could resume from this checkpoint, and it would
  /// replace older ones. `squares` must be the sums over all ranks.
  void require_finite() const {
    std::size_t tensors = 0;
    std::string first;
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const std::int64_t bad = squares[p].non_finite;
      if (bad == 0) continue;
      if (++tensors == 1) first = format("{} has {} elements that are infinite or NaN", parameters[p].name, bad);
    }
    if (tensors == 0) return;
    const auto latest = latest_update(names.final_folder.parent_path());
    throw RunError(format(
        "the weights after update {} are not finite ({}{}) and were not saved; {}; lower the learning rate, warm up longer or "
        "clip gradients, and start again",
        index.header.progress.update, first, tensors == 1 ? "" : format(", and so have {} other tensors", tensors - 1),
        latest ? format("the last complete checkpoint is {}", stored::step_name(*latest))
               : "there is no checkpoint before it"));
  }
  /// Returns the norm of every stored tensor, by its name in the index.
  std::map<std::string, double> norms() const {
    std::map<std::string, double> all;
    for (const Unit& unit : layout.units())
      for (std::size_t s = 0; s < index.states.size(); ++s)
        for (const std::size_t p : unit.parameters)
          if (stored::extent_of(unit, index.states[s]))
            all[stored::whole_name(index.states[s], parameters[p].name)] =
                std::sqrt(squares[s * parameters.size() + p].value());
    return all;
  }
  /// Called on rank 0 after the files of all ranks are on disk. `squares` must be the sums over all ranks.
  void complete_step(const std::vector<FileSum>& sums) {
    require_finite();
    writing(names.final_folder, all_bytes, [&] {
      for (int file = 1; file < files(); ++file)
        check_errno(::unlink(note_of(file).c_str()) == 0 || errno == ENOENT, "remove " + note_of(file).string());
      complete(names, index, sums, index_sum, norms());
    });
    std::uint64_t bytes = index_sum.bytes;
    for (const FileSum& file : sums) bytes += file.bytes;
    file_bytes = bytes;
    took_s = since_began.seconds();
  }
  void require_permission() const {
    if (world.rank() == 0 && may_complete) may_complete();
  }
  /// Sends rank 0's took_s to all ranks. Collective.
  void share_took() {
    double seconds = took_s;
    world.broadcast(&seconds, sizeof seconds, 0);
    took_s = seconds;
  }
  /// Makes rank 0's thread stop waiting for notes.
  void stop_waiting() {
    {
      const std::lock_guard lock(mutex);
      finishing = true;
    }
    changed.notify_all();
  }
  /// Called after a failure, when all ranks have closed their files or the job ends.
  void remove_temporary_folder() const {
    if (world.rank() != 0) return;
    try {
      require_permission();
      remove_our_files(names.temporary_folder, stored::is_step_file);
    } catch (const std::exception&) {  // the user sees the earlier error
    }
  }
};

CheckpointSave::CheckpointSave(const std::filesystem::path& save_dir, const CheckpointHeader& header, const Layout& layout,
                               std::span<const ShardState> states, Communicator& world, std::span<std::byte> snapshot,
                               h5::Compression compression, std::function<void()> may_complete, int files) {
  const int rank = world.rank(), world_size = world.size();
  const auto same = [](const UnitSpec& a, const UnitSpec& b) { return a == b; };
  expect(header.world_size == world_size && header.shards == layout.shards() && world_size % header.shards == 0 &&
             std::equal(header.units.begin(), header.units.end(), layout.units().begin(), layout.units().end(), same),
         "the header, the layout and the communicator agree");
  expect(header.base || std::all_of(header.units.begin(), header.units.end(), [](const UnitSpec& unit) { return unit.saved; }),
         "parameters that are not saved are those of a base model");
  expect(!states.empty() && states.front().name == parameters_state, "a checkpoint starts with the parameters");
  for (const ShardState& state : states) {
    expect(state.units.size() == layout.units().size(), "a state has all units");
    for (std::size_t u = 0; u < state.units.size(); ++u) {
      const auto extent = stored::extent_of(layout.units()[u], state.name);
      if (!layout.units()[u].saved) continue;
      expect(state.numel(u) == (extent ? layout.state_numel(u, *extent) : 0) && (!extent || *extent == state.extent),
             "the size of a state matches the layout");
    }
  }
  job_.reset(new Job{Names(save_dir, header.progress.update),
                     {header, {}, 0},
                     header.model.parameters(),
                     layout,
                     world,
                     compression,
                     std::move(may_complete)});
  job_->squares.resize(states.size() * job_->parameters.size());
  job_->index.header.ranks = world_size;
  if (files > 0 && files < world_size) {
    expect(compression == h5::Compression::none, "the offsets of compressed elements are not known beforehand");
    std::vector<SharedFiles::State> stored_states;
    for (const ShardState& state : states) stored_states.push_back({state.name, state.extent});
    job_->shared.emplace(job_->parameters, layout, world_size, files, std::move(stored_states));
    job_->index.header.world_size = job_->index.header.shards = files;
  }
  for (const ShardState& state : states) {
    job_->index.states.push_back(state.name);
    for (std::size_t u = 0; u < layout.units().size(); ++u)
      if (const auto extent = stored::extent_of(layout.units()[u], state.name))
        job_->all_bytes +=
            sizeof(float) * (*extent == Extent::element ? layout.units()[u].numel : layout.state_numel(u, *extent));
  }
  if (header.user_data)
    for (const auto& [name, bytes] : *header.user_data) job_->all_bytes += bytes.size();
  if (rank == 0) {
    std::random_device random;
    job_->index.save_id = (std::uint64_t{random()} << 32) | random();
  }
  world.broadcast(&job_->index.save_id, sizeof job_->index.save_id, 0);
  try {
    agree(world, [&] {
      if (rank == 0)
        writing(job_->names.temporary_folder, job_->all_bytes, [&] { prepare(save_dir, job_->names, job_->all_bytes); });
      job_->pieces = pieces_of(states, job_->parameters, layout, rank, world_size);
      if (snapshot.empty()) return;
      job_->pieces = copied(std::move(job_->pieces), snapshot);
      writer_ = std::make_unique<Worker>("fsdp-save");
    });
    if (job_->shared) agree(world, [&] { job_->create_shared(); });
  } catch (const std::exception&) {
    job_->remove_temporary_folder();
    throw;
  }
  if (!writer_) return;
  writer_->start([job = job_.get()] {
    kernels::set_threads(1);  // the main threads compute on the other cores
    try {
      job->write_and_complete();
    } catch (...) {
      job->stage = Stage::stuck;
      throw;
    }
    if (job->stage == Stage::working) job->stage = Stage::done;
  });
}

CheckpointSave::~CheckpointSave() {
  if (job_) job_->stop_waiting();
}

CheckpointSave::Stage CheckpointSave::stage() const { return writer_ ? job_->stage.load() : Stage::done; }

double CheckpointSave::took_s() const { return job_->took_s; }

std::uint64_t CheckpointSave::file_bytes() const { return job_->file_bytes; }

const std::filesystem::path& CheckpointSave::folder() const { return job_->names.final_folder; }

std::filesystem::path CheckpointSave::finish() {
  Communicator& world = job_->world;
  try {
    job_->stop_waiting();
    agree(world, [&] {
      try {
        if (writer_)
          writer_->finish();
        else
          job_->write();
      } catch (...) {
        job_->require_permission();  // the cause may be that the save folder was moved
        throw;
      }
      if (job_->took_s < 0) job_->require_permission();
    });
    if (job_->share_took(); job_->took_s >= 0) return folder();
    if (job_->shared) agree(world, [&] { job_->seal(); });
    const std::vector<std::int64_t> sums =
        world.gather(std::array{static_cast<std::int64_t>(job_->sum.bytes), static_cast<std::int64_t>(job_->sum.checksum)});
    auto& squares = job_->squares;
    world.sum(std::span(reinterpret_cast<std::int64_t*>(squares.data()), squares.size() * kernels::ExactSum::words));
    agree(world, [&] {
      if (world.rank() != 0) return;
      std::vector<FileSum> all;
      for (int file = 0; file < job_->files(); ++file) {
        const auto rank = static_cast<std::size_t>(job_->rank_of(file));
        all.push_back({static_cast<std::uint64_t>(sums[2 * rank]), static_cast<std::uint64_t>(sums[2 * rank + 1])});
      }
      job_->complete_step(all);
    });
    job_->share_took();
  } catch (const std::exception&) {
    job_->remove_temporary_folder();
    throw;
  }
  return folder();
}

std::filesystem::path save_checkpoint(const std::filesystem::path& save_dir, const CheckpointHeader& header,
                                      const Layout& layout, std::span<const ShardState> states, Communicator& world,
                                      h5::Compression compression, int files) {
  return CheckpointSave(save_dir, header, layout, states, world, {}, compression, nullptr, files).finish();
}

}  // namespace fsdp
