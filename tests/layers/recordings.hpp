// Recordings that the tests on the CPU and on a GPU run: random ones, and those whose results PyTorch has computed.
#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <fsdp/fsdp.hpp>

#include "layers/run_layer.hpp"

namespace fsdp::test {

using Recorded = std::function<Value(Tape&, Value)>;
using enum ops::Transpose;

/// A recording of `count` random operations on matrices [R, 6], columns [R, 1], rows [1, 6] and numbers, the same at each call.
/// `smooth`: the gradient is the derivative everywhere.
inline Recorded random_recording(unsigned seed, int count, bool smooth = false) {
  return [=](Tape& tape, Value x) {
    std::mt19937 random(seed);
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    std::vector<Value> full = {x}, columns_of = {row_mean(x)};
    std::vector<Value> rows_of_all = {tape.parameter("row", {6}, normal(1)), tape.parameter("number", {1}, normal(1))};
    const Value matrix = tape.parameter("matrix", {6, 6}, normal(1)), table = tape.parameter("table", {4, 6}, normal(1));
    const auto any = [&] { return full[below(full.size())]; };
    const auto side = [&]() -> Value {
      const std::size_t kind = below(3);
      return kind == 0 ? any() : kind == 1 ? columns_of[below(columns_of.size())] : rows_of_all[below(rows_of_all.size())];
    };
    for (int i = 0; i < count; ++i) {
      const Value a = below(3) == 0 ? any() : full.back();
      switch (const std::size_t operation = below(24); smooth && (operation == 7 || operation == 21) ? 0 : operation) {
        case 0:
          full.push_back(tanh(a));
          break;
        case 1:
          full.push_back(sigmoid(a) * a);
          break;
        case 2:
          full.push_back(a + side());
          break;
        case 3:
          full.push_back(tanh(a) * side());
          break;
        case 4:
          full.push_back(side() - a);
          break;
        case 5:
          full.push_back(a / (square(side()) + 1.0f));
          break;
        case 6:
          full.push_back(max(a, side()));
          break;
        case 7:
          full.push_back(where(is_less(a, side()), a, side()));
          break;
        case 8:
          full.push_back(softmax(a));
          break;
        case 9:
          full.push_back(tanh(log_softmax(a)));
          break;
        case 10:
          columns_of.push_back(log_sum_exp(a));
          break;
        case 11:
          columns_of.push_back(row_max(a) * 0.5f);
          break;
        case 12:
          columns_of.push_back(pick(a, tape.position(6)) + row_mean(any()));
          break;
        case 13:
          rows_of_all.push_back(column_sum(a) * 0.05f);
          break;
        case 14:
          full.push_back(tanh(matmul(a, matrix)));
          break;
        case 15:
          full.push_back(tanh(matmul(a, matrix, yes)));
          break;
        case 16:
          full.push_back(join(columns(a, 3, 3), columns(any(), 0, 3)));
          break;
        case 17:
          full.push_back(a * rows_of(table, tape.position(4)));
          break;
        case 18:
          full.push_back(tanh(matmul(softmax(matmul(columns(a, 1, 2), columns(any(), 0, 2), yes, tape.T)), any(), no, tape.T)));
          break;
        case 19:
          full.push_back(tanh(matmul(any(), matmul(transpose(a), any())) * 0.1f));
          break;
        case 20:
          full.push_back(dropout(a, 0.3));
          break;
        case 21:
          full.push_back(stop_gradient(a) + gelu(any()));
          break;
        case 22:
          full.push_back(a * exp(tanh(rows_of_all[below(rows_of_all.size())])));
          break;
        case 23:
          full.push_back(tanh(a * cross_entropy(any(), tape.position(3))));
          break;
      }
    }
    Value all = full.back() + columns_of.back() + rows_of_all.back();
    for (const Value& parameter : {matrix, table}) all = all + column_sum(parameter) * 0.01f;
    return all + x + rows_of_all[0] * rows_of_all[1];
  };
}

inline Tensors numbers_for(const Layer& layer, std::size_t rows, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal_number;
  Tensors given;
  const auto fill = [&](const std::string& name, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) given[name].push_back(normal_number(random));
  };
  fill("x", rows * layer.inputs()), fill("dy", rows * layer.outputs());
  for (const LayerParameter& parameter : layer.parameters()) fill("param/" + parameter.name, numel(parameter.shape));
  return given;
}

/// The largest difference between two results of the same name, relative to the largest number of it.
inline double difference(const Tensors& a, const Tensors& b) {
  double most = 0;
  for (const auto& [name, values] : a) {
    double largest = 1e-3, apart = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(b.at(name)[i])));
      const double distance = std::abs(static_cast<double>(values[i]) - static_cast<double>(b.at(name)[i]));
      apart = std::isfinite(distance) ? std::max(apart, distance) : HUGE_VAL;
    }
    most = std::max(most, apart / largest);
  }
  return most;
}

/// Unit vectors.
inline Value unit(const Value& x) { return x / fsdp::sqrt(row_sum(square(x)) + 1e-12f); }

/// The symmetric loss of two towers (Radford et al. 2021): the halves of a row belong together.
inline Value two_towers(Tape& tape, Value x) {
  const std::size_t n = x.columns() / 2;
  const Value scale = exp(tape.parameter("log_scale", {1}, constant(1.5f))), own = tape.position(tape.rows);
  const auto side = [&](std::size_t mine, std::size_t other) {
    return cross_entropy(matmul(scale * unit(columns(x, mine, n)), unit(columns(x, other, n)), yes), own);
  };
  return 0.5f * (side(0, n) + side(n, 0));
}

inline Value gated(Tape& tape, Value x) {
  const Value w1 = tape.parameter("w1", {10, 6}, normal(1)), w3 = tape.parameter("w3", {10, 6}, normal(1));
  const Value bias = tape.parameter("bias", {10}, normal(1)), w2 = tape.parameter("w2", {6, 10}, normal(1));
  return matmul(silu(matmul(x, w1, yes) + bias) * matmul(x, w3, yes), w2, yes);
}

inline Value norm(Tape& tape, Value x) {
  const Value centered = x - row_mean(x);
  return centered / fsdp::sqrt(row_mean(square(centered)) + 1e-5f) * tape.parameter("weight", {6}, constant(1)) +
         tape.parameter("bias", {6}, constant(0));
}

/// `device`: null for the CPU.
inline void compare_recordings_with_pytorch(Device* device) {
  const json file = read_json(golden_folder("").parent_path().parent_path() / "layers" / "tape.json");
  const std::map<std::string, Recorded> functions = {
      {"contrastive", two_towers},
      {"gated", gated},
      {"norm", norm},
      {"attention", [](Tape&, Value x) { return matmul(softmax(matmul(x, x, yes, 7)), x, no, 7); }},
      {"maximum",
       [](Tape& tape, Value x) {
         const Value other = tape.parameter("other", {6}, normal(1));
         return max(x, other) - min(x, other) * x;
       }},
      {"largest", [](Tape&, Value x) { return row_max(x); }},
      {"edges", [](Tape&, Value x) { return clamp(x, -1, 1) * gelu(x, ops::Gelu::erf) + fsdp::abs(x) + gelu(x) + relu(x); }},
      {"logarithms", [](Tape&, Value x) { return log_softmax(3.0f * x) + log_sum_exp(x) + log(x * x + 1e-3f); }},
      {"lookup",
       [](Tape& tape, Value x) {
         const Value table = tape.parameter("table", {5, 6}, normal(1));
         return x * rows_of(table, tape.position(5)) + column_sum(table * table);
       }},
  };
  BOOST_TEST_REQUIRE(file.size() == functions.size());
  for (const auto& [name, function] : functions) {
    Tensors golden;
    for (const auto& [key, values] : file.at(name).items()) golden[key] = values.get<std::vector<float>>();
    for (const auto& [key, values] : run_layer(*recorded(6, function), golden, 3, 7, DType::f32, device))
      BOOST_TEST(difference({{key, values}}, golden) < (device ? 4e-6 : 2e-6),
                 name << ", " << key << ": " << difference({{key, values}}, golden));
  }
}

}  // namespace fsdp::test
