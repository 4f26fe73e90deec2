// How parameters start.
#pragma once

namespace fsdp {

/// normal(mean 0, standard deviation `value`), or the constant `value`.
struct Init {
  enum class Kind { normal, constant } kind = Kind::normal;
  float value = 0;
};

constexpr Init normal(float standard_deviation) { return {Init::Kind::normal, standard_deviation}; }
constexpr Init constant(float value) { return {Init::Kind::constant, value}; }

}  // namespace fsdp
