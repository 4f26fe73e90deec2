#include "checkpoint/inspect.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "base/element.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "checkpoint/stored.hpp"
#include "kernels/exact_sum.hpp"

namespace fsdp {

namespace {

constexpr std::size_t elements_at_once = std::size_t{1} << 20;

/// Calls handle(state, name, shape) for the states of all tensors.
template <class Handle>
void each_tensor(const TensorSource& source, const std::vector<std::string>& states, Handle&& handle) {
  for (const std::string& state : states)
    for (const std::string& name : source.names())
      if (source.has_state(state, name)) handle(state, name, source.state_shape(state, name));
}

std::size_t bytes_of(const TensorSource& source, const std::vector<std::string>& states) {
  std::size_t bytes = 0;
  each_tensor(source, states, [&](auto&, auto&, const Shape& shape) { bytes += numel(shape) * sizeof(float); });
  return bytes;
}

template <class Handle>
void in_pieces(std::size_t elements, Handle&& handle) {
  for (std::size_t at = 0; at < elements; at += elements_at_once) handle(Range{at, std::min(elements, at + elements_at_once)});
}

}  // namespace

TensorSummary summarize(const TensorSource& source, const std::string& name, const std::string& state) {
  const std::size_t elements = numel(source.state_shape(state, name));
  TensorSummary summary;
  double sum = 0;
  kernels::ExactSum squares;
  const auto stream = make_host_stream();
  std::size_t finite = 0;
  std::vector<float> values(std::min(elements, elements_at_once));
  in_pieces(elements, [&](Range range) {
    source.read_state(state, name, range, values.data());
    kernels::add_squares(*stream, squares, values.data(), range.size());
    for (std::size_t i = 0; i < range.size(); ++i) {
      const double x = values[i];
      if (!std::isfinite(x)) {
        ++summary.non_finite;
        continue;
      }
      summary.smallest = finite == 0 ? x : std::min(summary.smallest, x);
      summary.largest = finite == 0 ? x : std::max(summary.largest, x);
      sum += x, ++finite;
    }
  });
  if (finite > 0) summary.mean = sum / static_cast<double>(finite);
  squares.non_finite = 0;
  summary.norm = std::sqrt(squares.value());
  return summary;
}

std::size_t verify_norms(const CheckpointReader& reader, const std::vector<std::string>& states, const ByteProgress& progress) {
  const std::size_t all = bytes_of(reader, states);
  std::size_t done = 0, compared = 0;
  each_tensor(reader, states, [&](const std::string& state, const std::string& name, const Shape& shape) {
    const auto saved = reader.norm(state, name);
    if (!saved) return;
    const TensorSummary found = summarize(reader, name, state);
    if (!found.has_norm(*saved))
      throw RunError(
          format("{} of {} has norm {} and {} elements that are not finite (its norm was {} when it was saved); restore the "
                 "checkpoint from a copy, or use another step",
                 stored::slice_name(state, name), reader.description(), found.norm, found.non_finite, *saved));
    ++compared;
    done += numel(shape) * sizeof(float);
    if (progress) progress(done, all);
  });
  return compared;
}

void compare_sources(const TensorSource& expected, const TensorSource& found, DType type, const ByteProgress& progress,
                     const std::vector<std::string>& states) {
  const std::size_t all = bytes_of(expected, states);
  std::size_t done = 0;
  std::vector<float> a(elements_at_once), b(elements_at_once);
  each_tensor(expected, states, [&](const std::string& state, const std::string& name, const Shape& shape) {
    const auto differ = [&](const std::string& how) {
      throw RunError(format("{} of {} differs from that of {} ({}); make it again", stored::whole_name(state, name),
                            found.description(), expected.description(), how));
    };
    if (!found.has_state(state, name)) differ("it is missing");
    if (const Shape other = found.state_shape(state, name); other != shape)
      differ(format("its shape is {}, not {}", to_string(other), to_string(shape)));
    in_pieces(numel(shape), [&](Range range) {
      expected.read_state(state, name, range, a.data());
      if (state == parameters_state) round_values(type, std::span(a).first(range.size()));
      found.read_state(state, name, range, b.data());
      done += range.size() * sizeof(float);
      if (progress) progress(done, all);
      if (std::memcmp(a.data(), b.data(), range.size() * sizeof(float)) == 0) return;
      std::size_t i = 0;
      while (std::memcmp(&a[i], &b[i], sizeof(float)) == 0) ++i;
      differ(format("element {} is {}, not {}", range.begin + i, b[i], a[i]));
    });
  });
}

std::vector<TensorDifference> compare_tensors(const TensorSource& a, const TensorSource& b, const ByteProgress& progress) {
  const std::size_t all = bytes_of(a, {parameters_state});
  std::size_t done = 0;
  std::vector<TensorDifference> differences;
  std::vector<float> x(elements_at_once), y(elements_at_once);
  for (const std::string& name : a.names()) {
    TensorDifference difference;
    difference.name = name;
    const Shape shape = a.shape(name);
    if (!b.has(name)) {
      difference.why = "only in " + a.description();
    } else if (b.shape(name) != shape) {
      difference.why = format("{} and {}", to_string(shape), to_string(b.shape(name)));
    } else {
      double apart = 0, squares = 0;
      in_pieces(numel(shape), [&](Range range) {
        a.read(name, range, x.data());
        b.read(name, range, y.data());
        for (std::size_t i = 0; i < range.size(); ++i) {
          squares += double{x[i]} * double{x[i]};
          if (std::memcmp(&x[i], &y[i], sizeof(float)) == 0) continue;
          const double d = std::abs(double{x[i]} - double{y[i]});
          ++difference.elements;
          apart += d * d;
          if (d > difference.largest || std::isnan(d)) difference.largest = d;  // NaN stays
        }
        done += range.size() * sizeof(float);
        if (progress) progress(done, all);
      });
      difference.relative = squares > 0 ? std::sqrt(apart / squares) : apart > 0 ? INFINITY : 0;
    }
    differences.push_back(std::move(difference));
  }
  for (const std::string& name : b.names())
    if (!a.has(name)) differences.push_back({.name = name, .why = "only in " + b.description()});
  return differences;
}

}  // namespace fsdp
