#include "checkpoint/unchecked.hpp"

#include <algorithm>
#include <cstddef>
#include <exception>

#include "base/error.hpp"
#include "base/format.hpp"
#include "checkpoint/stored.hpp"
#include "files/input_file.hpp"
#include "h5/h5.hpp"

namespace fsdp {

namespace {

/// Whatever is thrown is thrown again in the process that asks.
template <class Work>
void attempt(Work&& work) {
  try {
    work();
  } catch (const std::exception&) {
  }
}

void touch_all(const std::filesystem::path& path, std::vector<std::string> groups) {
  const h5::File file = h5::File::open(path, Verify::no);
  for (const char* name : {"format", "config", "checksums", "optimizer", "version"}) attempt([&] { file.read_text(name); });
  for (const char* name : {"format_version", "save_id", "rank"}) attempt([&] { file.read_integer(name); });
  attempt([&] {
    for (const std::string& state : stored::read_states(file)) groups.push_back(state);
  });
  std::vector<float> values;
  for (const std::string& group : groups)
    attempt([&] {
      for (const std::string& name : file.dataset_names(group))
        attempt([&] {
          const h5::Dataset dataset = file.dataset(group == "/" ? name : group + "/" + name);
          attempt([&] { dataset.read_integer("begin"); });
          // Where elements lie one behind the other, HDF5 only copies them: the first and the last say as much as all.
          const std::size_t n = numel(dataset.shape()), most = dataset.offset() ? 1 : std::size_t{1} << 20;
          const std::size_t piece = std::min(n, most);
          values.resize(piece);
          const std::size_t step = dataset.offset() ? std::max<std::size_t>(n - piece, 1) : piece;
          for (std::size_t at = 0; at < n; at += step) dataset.read({at, std::min(n, at + piece)}, values.data());
        });
    });
}

}  // namespace

void try_unchecked(const std::filesystem::path& path, std::vector<std::string> groups, const std::string& remedy) {
  // A compressed dataset is read as a whole, which takes time; so the limit grows with the size of the file.
  const double seconds = 10 + static_cast<double>(size_of_file(path).value_or(0)) / 20e6;
  const std::string end = h5::what_ends_hdf5([&] { touch_all(path, groups); }, seconds);
  if (!end.empty())
    throw DamagedError(
        format("{} is damaged (it was read in a process of its own first, and {}); {}", path.string(), end, remedy));
}

}  // namespace fsdp
