// Reads and writes token files in HDF5.
#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "data/formats.hpp"
#include "data/output_place.hpp"
#include "data/stored_integers.hpp"
#include "files/json.hpp"
#include "files/output_file.hpp"
#include "h5/h5.hpp"

namespace fsdp {

namespace {

constexpr const char *lengths_name = "document_lengths", *mask_name = "loss_mask";

/// Other programs may write datasets next to the tokens. Such a dataset has no effect on training if its contents are
/// a copy of the tokens, only 1, only 0, or the column of each token. `nothing` is for a dataset that always has an effect.
enum class Holds { tokens, ones, zeros, columns, nothing };
struct Companion {
  const char* name;
  Holds harmless;
};
constexpr Companion companions[] = {
    {"labels", Holds::tokens},           {"attention_mask", Holds::ones},    {"token_type_ids", Holds::zeros},
    {"segment_ids", Holds::zeros},       {"position_ids", Holds::columns},   {"label_ids", Holds::tokens},
    {"targets", Holds::nothing},         {"target_ids", Holds::nothing},     {"completion_mask", Holds::nothing},
    {"assistant_masks", Holds::nothing}, {"assistant_mask", Holds::nothing}, {"loss_weights", Holds::nothing},
    {"weights", Holds::nothing}};
/// Names of datasets and attributes without effect on training. The attributes are those of HDF5 and PyTables.
constexpr std::string_view meaningless_datasets[] = {"special_tokens_mask", "id", "idx", "index", "text", "url", "source"},
                           meaningless_attributes[] = {"CLASS",   "NAME",   "DIMENSION_LIST", "REFERENCE_LIST",         "TITLE",
                                                       "VERSION", "FLAVOR", "EXTDIM",         "PYTABLES_FORMAT_VERSION"};

bool is_among(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Calls `read`, and rethrows an error of HDF5 as DamagedError.
template <class Read>
auto reading(const std::filesystem::path& path, const Read& read) {
  try {
    return read();
  } catch (const CallError& error) {
    throw DamagedError(format("{} cannot be read ({}); copy the file again, or make it anew", path.string(), error.what()));
  }
}

class Hdf5Tokens : public Tokens {
 public:
  /// Reads `dataset`, or the dataset of the tokens if `dataset` is null.
  explicit Hdf5Tokens(const std::filesystem::path& path, const char* dataset = nullptr)
      : path_(path),
        name_(dataset ? format("\"{}\" of '{}'", dataset, path.string()) : format("'{}'", path.string())),
        file_(h5::File::open(path, Verify::no)),
        datasets_(file_.dataset_names("/")),
        dataset_(dataset ? dataset : name_of_tokens()),
        tokens_(file_.integers(dataset_)) {
    if (tokens_.shape().size() > 2)
      throw unusable_tokens(path,
                            format("its tokens have {} dimensions, but only one or two are read", tokens_.shape().size()));
    tokens_.require_whole();
    if (!dataset) open_others();
  }

  std::uint64_t size() const override { return numel(tokens_.shape()); }
  void read(std::uint64_t begin, std::span<std::uint32_t> out) const override {
    std::array<std::int64_t, 4096> piece;
    for (std::size_t done = 0; done < out.size();) {
      const std::size_t n = std::min(piece.size(), out.size() - done);
      tokens_.read({begin + done, begin + done + n}, piece.data());
      for (std::size_t i = 0; i < n; ++i) {
        out[done + i] = static_cast<std::uint32_t>(piece[i] < 0 ? no_token : std::min<std::int64_t>(piece[i], no_token));
      }
      done += n;
    }
  }
  std::string name() const override { return name_; }
  std::uint64_t largest_possible() const override { return IntegerType{tokens_.bytes(), tokens_.is_signed()}.largest(); }
  bool has_documents() const override { return has(lengths_name); }
  std::unique_ptr<Tokens> mask() const override {
    if (!has(mask_name)) return nullptr;
    return reading(path_, [&] { return std::make_unique<Hdf5Tokens>(path_, mask_name); });
  }
  std::string unread() const override {
    if (unread_.empty()) return "";
    return format(
        "{} has parts that are not used ({}); if they define which tokens count or where documents begin, write \"{}\" or "
        "\"{}\"",
        name_, fmt::join(unread_, ", "), mask_name, lengths_name);
  }
  void check(std::size_t part, std::size_t parts) const override {
    if (dataset_ == lengths_name || dataset_ == mask_name)
      throw unusable_tokens(path_,
                            format("its only dataset is \"{}\", and none is called \"tokens\" or \"input_ids\"", dataset_));
    if (part == 0 && has_documents()) each_document([](std::uint64_t, std::uint64_t) {});
    const Range mine = share(size(), parts, part);
    const std::uint64_t columns = tokens_.shape().back();
    std::vector<std::int64_t> tokens(std::min<std::size_t>(mine.size(), 1u << 16)), numbers(tokens.size());
    for (const auto& [companion, dataset] : beside_)
      for (std::size_t begin = mine.begin; begin < mine.end; begin += tokens.size()) {
        const std::size_t n = std::min(tokens.size(), mine.end - begin);
        dataset.read({begin, begin + n}, numbers.data());
        if (companion->harmless == Holds::tokens) tokens_.read({begin, begin + n}, tokens.data());
        for (std::size_t i = 0; i < n; ++i)
          if (numbers[i] != harmless(companion->harmless, tokens[i], (begin + i) % columns))
            refuse(*companion, format(", which is {} at position {}", numbers[i], begin + i));
      }
  }
  std::vector<std::uint64_t> documents() const override {
    std::vector<std::uint64_t> starts;
    each_document([&](std::uint64_t start, std::uint64_t tokens) {
      if (tokens > 0) starts.push_back(start);
    });
    return starts;
  }

 private:
  /// Calls take(start, tokens) for each document. Throws UserError unless the lengths add up to the number of tokens.
  template <class Take>
  void each_document(const Take& take) const {
    const h5::Integers lengths = reading(path_, [&] { return file_.integers(lengths_name); });
    const std::size_t count = numel(lengths.shape());
    std::vector<std::int64_t> piece(std::min<std::size_t>(count, 1u << 16));
    std::uint64_t start = 0;
    for (std::size_t begin = 0; begin < count; begin += piece.size()) {
      const std::size_t n = std::min(piece.size(), count - begin);
      lengths.read({begin, begin + n}, piece.data());
      for (std::size_t i = 0; i < n; ++i) {
        const std::uint64_t left = size() - start;
        if (piece[i] < 0 || static_cast<std::uint64_t>(piece[i]) > left)
          throw UserError(
              format("{} has a document {} of {} tokens, but only {} tokens are left (its \"{}\" do not belong to its tokens); "
                     "write it anew",
                     name_, begin + i, piece[i], left, lengths_name));
        take(start, static_cast<std::uint64_t>(piece[i]));
        start += static_cast<std::uint64_t>(piece[i]);
      }
    }
    if (start != size())
      throw UserError(
          format("{} has documents of {} tokens together, but {} tokens (its \"{}\" do not belong to its tokens); "
                 "write it anew",
                 name_, start, size(), lengths_name));
  }
  static std::int64_t harmless(Holds holds, std::int64_t token, std::uint64_t column) {
    return holds == Holds::tokens ? token : holds == Holds::columns ? static_cast<std::int64_t>(column) : holds == Holds::ones;
  }

  std::string name_of_tokens() const {
    if (has("tokens") && has("input_ids"))
      throw unusable_tokens(path_, "it is an HDF5 file with two datasets of tokens, \"tokens\" and \"input_ids\"");
    for (const char* known : {"tokens", "input_ids"})
      if (has(known)) return known;
    if (datasets_.size() == 1) return datasets_.front();
    throw unusable_tokens(path_,
                          datasets_.empty()
                              ? "it is an HDF5 file without datasets"
                              : format("it is an HDF5 file of {} datasets, none of which is called \"tokens\" or \"input_ids\"",
                                       datasets_.size()));
  }
  bool has(const char* dataset) const { return std::find(datasets_.begin(), datasets_.end(), dataset) != datasets_.end(); }
  void open_others() {
    for (const std::string& other : datasets_) {
      if (other == dataset_ || other == lengths_name || other == mask_name || is_among(meaningless_datasets, other)) continue;
      const auto known = std::find_if(std::begin(companions), std::end(companions),
                                      [&](const Companion& companion) { return companion.name == other; });
      if (known == std::end(companions)) {
        unread_.push_back(format("dataset {}", json_excerpt(other)));
        continue;
      }
      if (known->harmless == Holds::nothing) refuse(*known, "");
      const std::size_t numbers = numel(beside_.emplace_back(known, file_.integers(other)).second.shape());
      if (numbers != size()) refuse(*known, format(", which has {} numbers for {} tokens", numbers, size()));
    }
    for (const std::string& other : file_.other_names("/")) unread_.push_back(format("group {}", json_excerpt(other)));
    note_attributes(file_, "");
    note_attributes(tokens_, "");
    for (const char* ours : {lengths_name, mask_name})
      if (has(ours) && dataset_ != ours) note_attributes(file_.integers(ours), format(" of {}", ours));
  }
  void note_attributes(const h5::Node& node, const std::string& of) {
    for (const std::string& attribute : node.attribute_names())
      if (!is_among(meaningless_attributes, attribute))
        unread_.push_back(format("attribute {}{}", json_excerpt(attribute), of));
  }
  [[noreturn]] void refuse(const Companion& companion, const std::string& what) const {
    throw UserError(
        format("'{}' has a dataset \"{}\"{} (it is not read, but would change training); remove \"{}\"; write which tokens "
               "count in the loss as a dataset \"{}\" of 1 and 0, and the lengths of documents as \"{}\"",
               path_.string(), companion.name, what, companion.name, mask_name, lengths_name));
  }

  std::filesystem::path path_;
  std::string name_;  // for messages
  h5::File file_;
  std::vector<std::string> datasets_;
  std::string dataset_;  // that of the tokens
  h5::Integers tokens_;
  std::vector<std::pair<const Companion*, h5::Integers>> beside_;  // datasets whose contents check() examines
  std::vector<std::string> unread_;  // descriptions of unused contents: 'dataset "x"', 'attribute "y"'
};

/// A dataset, which is created in the file when it gets its first values.
class Column {
 public:
  Column(h5::File& file, const char* name, std::size_t bytes) : file_(file), name_(name), bytes_(bytes) {}
  void add(std::uint32_t value) {
    buffer_.push_back(value);
    if (buffer_.size() == piece) flush();
  }
  void finish() {
    flush();
    dataset_.reset();
  }

 private:
  static constexpr std::size_t piece = std::size_t{1} << 16;

  void flush() {
    if (buffer_.empty()) return;
    if (!dataset_) dataset_.emplace(file_.create_integers(name_, bytes_, h5::Compression::gzip));
    dataset_->append(buffer_);
    buffer_.clear();
  }

  h5::File& file_;
  const char* name_;
  std::size_t bytes_;
  std::optional<h5::Integers> dataset_;
  std::vector<std::uint32_t> buffer_;
};

/// Writes the mask into a file that another writer finishes.
class Hdf5MaskWriter : public TokenWriter {
 public:
  explicit Hdf5MaskWriter(h5::File& file) : mask_(file, mask_name, 2) {}
  void add(std::span<const TokenId> counts) override {
    for (const TokenId each : counts) mask_.add(static_cast<std::uint32_t>(each));
  }
  std::vector<WrittenFile> finish() override {
    mask_.finish();
    return {};
  }

 private:
  Column mask_;
};

class Hdf5Writer : public TokenWriter {
 public:
  Hdf5Writer(const std::filesystem::path& path, std::size_t token_bytes) : path_(path) {
    require_place(path);
    remove_left_over(temporary_path(path_));
    file_.emplace(h5::File::create(temporary_path(path_)));
    tokens_.emplace(*file_, "tokens", token_bytes);
    lengths_.emplace(*file_, lengths_name, 4);
  }
  ~Hdf5Writer() override {
    if (finished_) return;
    tokens_.reset();
    lengths_.reset();
    file_.reset();
    ::unlink(temporary_path(path_).c_str());
  }

  void add(std::span<const TokenId> tokens) override {
    for (const TokenId token : tokens) {
      tokens_->add(static_cast<std::uint32_t>(token));
      if (++in_document_ == most_in_document) end_document();
    }
    written_ += tokens.size();
  }

  void end_document() override {
    if (in_document_ == 0) return;
    lengths_->add(static_cast<std::uint32_t>(std::exchange(in_document_, 0)));
    ++documents_;
  }

  std::unique_ptr<TokenWriter> make_mask_writer() override { return std::make_unique<Hdf5MaskWriter>(*file_); }

  std::vector<WrittenFile> finish() override {
    if (documents_ > 0) end_document();
    tokens_->finish();
    lengths_->finish();
    file_->close();
    rename_durably(temporary_path(path_), path_);
    finished_ = true;
    return {{path_, written_}};
  }

 private:
  static constexpr std::uint64_t most_in_document = std::uint64_t{1} << 31;

  std::filesystem::path path_;
  std::optional<h5::File> file_;
  std::optional<Column> tokens_, lengths_;  // declared after the file, so that they are destroyed first
  std::uint64_t written_ = 0, documents_ = 0, in_document_ = 0;
  bool finished_ = false;
};

}  // namespace

/// HDF5 files. The tokens are the integer dataset "tokens" or "input_ids", or the only dataset. It has one dimension, or
/// two; the rows of two dimensions are joined. The dataset "document_lengths" has the number of tokens of each document, and
/// "loss_mask" has 1 for tokens that count. Tokens::check() throws UserError for datasets that would change training, such as
/// "labels" that differ from the tokens.
const TokenFormat& hdf5_tokens() {
  static const TokenFormat row = {
      .name = "hdf5",
      .about = "compressed; a killed run begins anew.",
      .recognises = [](const std::filesystem::path&,
                       std::string_view beginning) { return beginning.starts_with("\x89HDF\r\n\x1a\n"); },
      .open = [](const std::filesystem::path& path) -> std::unique_ptr<Tokens> {
        return reading(path, [&] { return std::make_unique<Hdf5Tokens>(path); });
      },
      .make_writer = [](const std::filesystem::path& path, std::size_t vocab_size, const nlohmann::json&,
                        std::uint64_t) -> std::unique_ptr<TokenWriter> {
        return std::make_unique<Hdf5Writer>(path, vocab_size <= std::size_t{1} << 16 ? 2 : 4);
      },
      .resumes = false,
      .endings = {".h5", ".hdf5"}};
  return row;
}

}  // namespace fsdp
