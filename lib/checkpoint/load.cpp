// Loading: fills one rank's shard from a checkpoint or another source of whole tensors.
#include <algorithm>
#include <set>
#include <tuple>

#include "base/error.hpp"
#include "base/format.hpp"
#include "checkpoint/checkpoint.hpp"
#include "kernels/quantized.hpp"
#include "nn/patterns.hpp"

namespace fsdp {

namespace {

constexpr std::size_t most_at_once = std::size_t{1} << 20;  // elements

constexpr const char* other_source = "check the model options, or use another source";
constexpr std::size_t most_named = 5;

/// Joins lines and shortens the list: "a: it is missing; b: it is missing; and 3 more".
std::string cut(std::vector<std::string> lines) {
  const std::size_t all = lines.size();
  if (all > most_named) lines.resize(most_named), lines.push_back(format("and {} more", all - most_named));
  return format("{}", fmt::join(lines, "; "));
}

/// Returns why a tensor is missing. An LM head may be missing because it is tied to the embedding.
std::string why_missing(const TensorSource& source, const std::string& name) {
  const StoredModel model = source.model();
  if (!model.is_transformer()) return "it is missing";
  const TransformerConfig& config = model.transformer(source.description());
  if (name != find_family(config.family).names.head) return "it is missing";
  return config.tied_embeddings
             ? "it is missing, because that model ties its head to the embedding (tie_word_embeddings)"
             : "it is missing, although tie_word_embeddings of config.json is false: set that to true if the "
               "head is the embedding";
}

}  // namespace

Mismatch find_mismatch(const TensorSource& source, const std::vector<Parameter>& parameters, const IgnoredTensors& ignored,
                       const std::string& remedy) {
  Mismatch result;
  result.fresh.resize(parameters.size());
  std::set<std::string> used;
  std::vector<std::string> bad, surplus;
  const auto note = [&](const std::string& name, const std::string& how, const char* then, std::vector<std::string>& refused) {
    bool allowed = false;
    for (const std::string& pattern : &refused == &bad ? ignored.missing : ignored.unexpected)
      if (matches(pattern, name)) allowed = true, used.insert(pattern);
    if (allowed)
      result.said.push_back(format("{} {}: {}", name, then, how));
    else
      refused.push_back(format("{}: {}", name, how));
    return allowed;
  };
  std::set<std::string> known;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const auto& [name, shape] = std::tie(parameters[p].name, parameters[p].shape);
    known.insert(name);
    if (!source.has(name))
      result.fresh[p] = note(name, why_missing(source, name), "is newly initialized", bad);
    else if (const Shape found = source.shape(name); found != shape)
      result.fresh[p] =
          note(name, format("its shape is {} in the source, but {} in the model", to_string(found), to_string(shape)),
               "is newly initialized", bad);
  }
  for (const std::string& name : source.names())
    if (!known.contains(name) &&
        note(name, format("the model does not have this tensor of shape {}", to_string(source.shape(name))), "is left out",
             surplus))
      result.unexpected.push_back(name);
  if (const std::size_t all = bad.size() + surplus.size(); all > 0)
    throw UserError(format("{} does not fit the model in {} ({}{}{}); {}", source.description(), plural(all, "tensor"),
                           cut(bad), bad.empty() || surplus.empty() ? "" : "; ", cut(surplus),
                           remedy.empty() ? other_source : remedy));
  std::set<std::string> patterns(ignored.missing.begin(), ignored.missing.end());
  patterns.insert(ignored.unexpected.begin(), ignored.unexpected.end());
  for (const std::string& pattern : patterns)
    if (!used.contains(pattern))
      result.said.push_back(format("'{}' changes nothing: {}", pattern,
                                   tied_head(pattern, parameters).value_or("it matches no tensor, or only tensors that fit")));
  return result;
}

namespace {

/// Writes zeros to the elements of the rank's part of the unit that are not in `filled`: padding, and states of parameters that
/// were not trained.
void clear_rest(const ShardState& state, std::size_t unit, std::vector<Range> filled) {
  const MemoryView& all = state.units[unit];
  const std::size_t size = size_of(state.types[unit]);
  std::sort(filled.begin(), filled.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  std::size_t at = 0;
  for (const Range& range : filled) {
    all.clear(at * size, range.begin * size);
    at = range.end;
  }
  all.clear(at * size, all.bytes());
}

/// Fills `range` of a tensor by `read(range, out)`. `offset` is the index of the range's first element in the rank's part of
/// the unit. Reads directly into a state that is fp32 and in host memory, else through a host buffer.
template <class Read>
void fill(const ShardState& state, std::size_t unit, std::size_t offset, Range range, const Read& read) {
  std::byte* const there = state.units[unit].host();
  if (state.types[unit] == DType::f32 && there) return read(range, reinterpret_cast<float*>(there) + offset);
  std::vector<float> piece;
  for (std::size_t at = 0; at < range.size(); at += piece.size()) {
    piece.resize(std::min(most_at_once, range.size() - at));
    read(Range{range.begin + at, range.begin + at + piece.size()}, piece.data());
    state.write(unit, offset + at, piece);
  }
}

/// Quantizes a whole parameter, and writes the words of this slice. The words do not depend on the number of ranks.
void fill_quantized(const ShardState& state, std::size_t unit, const Slice& slice, const Parameter& parameter,
                    const TensorSource& source) {
  std::vector<float> words(parameter.kept_numel());
  kernels::quantize(
      *parameter.quantized, parameter.matrix_shape(),
      [&](Range range, float* out) { source.read_to_use(parameters_state, parameter.name, range, out); },
      std::as_writable_bytes(std::span(words)));
  state.units[unit].write(slice.shard_offset * sizeof(float),
                          std::as_bytes(std::span(words).subspan(slice.range.begin, slice.range.size())));
}

}  // namespace

std::vector<std::uint64_t> missed_updates(const Progress& progress, const std::vector<Parameter>& parameters) {
  std::vector<std::uint64_t> missed;
  for (const Parameter& parameter : parameters) {
    const auto began = progress.states_began.find(parameter.name);
    const bool is_later = began != progress.states_began.end() && began->second > progress.optimizer_began;
    missed.push_back(is_later ? began->second - progress.optimizer_began : 0);
  }
  return missed;
}

void note_states(Progress& progress, const std::vector<Parameter>& parameters, const std::vector<bool>& trains,
                 const std::function<bool(std::size_t)>& had_state) {
  for (std::size_t p = 0; p < parameters.size(); ++p)
    if (!trains[p])
      progress.states_began.erase(parameters[p].name);
    else if (!had_state(p) && progress.update > progress.optimizer_began)
      progress.states_began[parameters[p].name] = progress.update;
}

bool has_average(const TensorSource& source) {
  const std::vector<std::string> states = source.states();
  return std::find(states.begin(), states.end(), average_state) != states.end();
}

ShardState only_units(ShardState state, const Layout& layout, bool saved) {
  for (std::size_t u = 0; u < state.units.size(); ++u)
    if (layout.units()[u].saved != saved) state.units[u] = {};
  return state;
}

void load_states(const CheckpointReader& reader, const std::vector<Parameter>& parameters, const Layout& layout, int shard,
                 std::span<const ShardState> states, const ByteProgress& progress) {
  std::vector<Parameter> saved;
  for (const Unit& unit : layout.units())
    for (const std::size_t p : unit.parameters)
      if (unit.saved) saved.push_back(parameters[p]);
  find_mismatch(reader, saved);
  for (const ShardState& state : states) {
    expect(state.units.size() == layout.units().size(), "a state has all units");
    for (std::size_t u = 0; u < state.units.size(); ++u) {
      if (state.units[u].empty()) continue;
      expect(state.numel(u) == layout.state_numel(u, state.extent), "the size of a state matches the rank's part of the unit");
    }
  }
  std::vector<std::pair<const ShardState*, PlannedRead>> reads;
  const auto known = reader.states();
  // The average of a parameter that was not trained is the parameter.
  const auto stored_name = [&](const ShardState& state, const std::string& name) {
    return state.name == average_state && !reader.was_trained(name) ? parameters_state : state.name;
  };
  const auto is_stored = [&](const ShardState& state, const std::string& name) {
    if (state.name == average_state || state.name == parameters_state) return true;
    if (!reader.was_trained(name)) return false;
    const bool is_known = std::find(known.begin(), known.end(), state.name) != known.end();
    return !is_known || reader.has_state(state.name, name);  // true for an unknown state: the read then throws
  };
  for (const Extent extent : {Extent::element, Extent::row, Extent::column}) {
    if (std::none_of(states.begin(), states.end(), [&](const ShardState& state) { return state.extent == extent; })) continue;
    const std::vector<PlannedRead> plan = plan_reads(reader.parts(), parameters, layout, shard, extent);
    // Each file is opened once, and read in the order in which it was written.
    for (auto file = plan.begin(); file != plan.end();) {
      const auto next = std::find_if(file, plan.end(), [&](const PlannedRead& read) { return read.rank != file->rank; });
      for (const ShardState& state : states)
        for (auto read = file; read != next; ++read)
          if (state.extent == extent && !state.units[read->unit].empty() && is_stored(state, parameters[read->parameter].name))
            reads.emplace_back(&state, *read);
      file = next;
    }
  }
  for (const ShardState& state : states)
    for (std::size_t u = 0; u < state.units.size(); ++u) {
      std::vector<Range> filled;
      for (const auto& [read_state, read] : reads)
        if (read_state == &state && read.unit == u) filled.push_back({read.offset, read.offset + read.range.size()});
      clear_rest(state, u, std::move(filled));
    }

  const auto prefetch = [&](const ShardState& state, const PlannedRead& read) {
    const std::string& name = parameters[read.parameter].name;
    reader.prefetch_state(stored_name(state, name), name, read.range);
  };
  std::size_t all = 0, done = 0;  // bytes in fp32
  for (const auto& [state, read] : reads) all += read.range.size() * sizeof(float);
  if (progress) progress(0, all);
  for (std::size_t i = 0; i < reads.size(); ++i) {
    const ShardState& state = *reads[i].first;
    const PlannedRead& read = reads[i].second;
    const std::string& name = parameters[read.parameter].name;
    if (i + 1 < reads.size()) prefetch(*reads[i + 1].first, reads[i + 1].second);
    fill(state, read.unit, read.offset, read.range,
         [&](Range range, float* out) { reader.read_to_use(stored_name(state, name), name, range, out); });
    if (progress) progress(done += read.range.size() * sizeof(float), all);
  }
}

void load_parameters(const TensorSource& source, const std::vector<Parameter>& parameters, const Layout& layout, int shard,
                     const ShardState& state, const std::vector<bool>& fresh, const ByteProgress& progress) {
  if (fresh.empty()) find_mismatch(source, parameters);
  expect(state.units.size() == layout.units().size(), "a state has all units");
  std::size_t all = 0, done = 0;  // bytes in fp32
  for (std::size_t unit = 0; unit < state.units.size(); ++unit)
    if (!state.units[unit].empty())
      for (const Slice& slice : layout.slices(unit, shard)) all += slice.range.size() * sizeof(float);
  if (progress) progress(0, all);
  for (std::size_t unit = 0; unit < state.units.size(); ++unit) {
    if (state.units[unit].empty()) continue;
    expect(state.numel(unit) == layout.shard_numel(unit), "the size of a state matches the rank's shard");
    std::vector<Range> filled;
    for (const Slice& slice : layout.slices(unit, shard))
      filled.push_back({slice.shard_offset, slice.shard_offset + slice.range.size()});
    clear_rest(state, unit, std::move(filled));
    for (const Slice& slice : layout.slices(unit, shard)) {
      if (const Parameter& parameter = parameters[slice.parameter]; parameter.quantized)
        fill_quantized(state, unit, slice, parameter, source);
      else if (fresh.empty() || !fresh[slice.parameter])
        fill(state, unit, slice.shard_offset, slice.range, [&](Range range, float* out) {
          source.read_to_use(parameters_state, parameters[slice.parameter].name, range, out);
        });
      if (progress) progress(done += slice.range.size() * sizeof(float), all);
    }
  }
}

}  // namespace fsdp
