// Initial values of parameters.
#pragma once

namespace fsdp {

/// normal(mean 0, standard deviation `value`), uniform from -`value` to `value`, or the constant `value`.
struct Init {
  /// The distribution.
  enum class Kind { normal, uniform, constant } kind = Kind::normal;  // the distribution
  float value = 0;                                                    // its parameter
};
/// normal(), uniform() and constant() make an Init.
constexpr Init normal(float standard_deviation) { return {Init::Kind::normal, standard_deviation}; }
constexpr Init uniform(float bound) { return {Init::Kind::uniform, bound}; }
constexpr Init constant(float value) { return {Init::Kind::constant, value}; }

}  // namespace fsdp
