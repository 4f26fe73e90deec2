// Every row body, and the one list from which they are instantiated for each instruction set and for CUDA.
#pragma once

#include "kernels/rows/cross_entropy.hpp"
#include "kernels/rows/dropout.hpp"
#include "kernels/rows/embedding.hpp"
#include "kernels/rows/initial.hpp"
#include "kernels/rows/newton_schulz.hpp"
#include "kernels/rows/norm.hpp"
#include "kernels/rows/optimizer.hpp"
#include "kernels/rows/pointwise.hpp"
#include "kernels/rows/rope.hpp"
#include "kernels/rows/squares.hpp"
#include "kernels/rows/statistics.hpp"

/// Those that read and write states of one type.
#define FSDP_OPTIMIZER_BODIES(X, State)     \
  X(ElementUpdate<AdamRule<false>, State>)  \
  X(ElementUpdate<AdamRule<true>, State>)   \
  X(ElementUpdate<MomentumRule, State>)     \
  X(ElementUpdate<AdagradRule, State>)      \
  X(ElementUpdate<LionRule, State>)         \
  X(ElementUpdate<VarianceRule, State>)     \
  X(ElementUpdate<MuonMomentumRule, State>) \
  X(LambStatistics<State>)                  \
  X(LambUpdate<State>)                      \
  X(VarianceStatistics<State>)

#define FSDP_ROW_BODIES(X)                \
  FSDP_OPTIMIZER_BODIES(X, float)         \
  FSDP_OPTIMIZER_BODIES(X, std::uint16_t) \
  X(ElementUpdate<SgdRule, float>)        \
  X(RowSquares)                           \
  X(Scale)                                \
  X(SquarePolynomial)                     \
  X(ColumnSquares)                        \
  X(FactorUpdate)                         \
  X(FactoredSquares)                      \
  X(FactoredUpdate)                       \
  X(AddBias)                              \
  X(AddResidual)                          \
  X(BiasGelu<Gelu::erf>)                  \
  X(BiasGelu<Gelu::tanh>)                 \
  X(ColumnFinish)                         \
  X(ColumnSum)                            \
  X(CopyPieces)                           \
  X(CrossEntropy)                         \
  X(DropoutBody)                          \
  X(EmbeddingBackward)                    \
  X(EmbeddingForward)                     \
  X(Fill)                                 \
  X(GeluBackward<Gelu::erf>)              \
  X(GeluBackward<Gelu::tanh>)             \
  X(LayerNormBackward)                    \
  X(LayerNormForward)                     \
  X(NormalFill)                           \
  X(PositionBackward)                     \
  X(RmsNormBackward)                      \
  X(RmsNormForward)                       \
  X(RopeBody)                             \
  X(Squares)                              \
  X(SwigluBackward)                       \
  X(SwigluForward)
