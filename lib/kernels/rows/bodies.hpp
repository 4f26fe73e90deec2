// Includes every row body (a kernel for one row: see lanes.hpp), and lists the bodies that are instantiated for each
// instruction set and for CUDA.
#pragma once

#include "kernels/rows/cached_attention.hpp"
#include "kernels/rows/cross_entropy.hpp"
#include "kernels/rows/dropout.hpp"
#include "kernels/rows/embedding.hpp"
#include "kernels/rows/initial.hpp"
#include "kernels/rows/layers.hpp"
#include "kernels/rows/newton_schulz.hpp"
#include "kernels/rows/norm.hpp"
#include "kernels/rows/optimizer.hpp"
#include "kernels/rows/plain_attention.hpp"
#include "kernels/rows/pointwise.hpp"
#include "kernels/rows/quantized.hpp"
#include "kernels/rows/ranks.hpp"
#include "kernels/rows/rope.hpp"
#include "kernels/rows/squares.hpp"
#include "kernels/rows/statistics.hpp"

/// Optimizer updates of single elements, and KeepAndSquare. Only CUDA uses this list: on the CPU, each call of
/// update_elements() compiles the loop for its rule.
#define FSDP_ELEMENT_UPDATES(X)             \
  FSDP_ELEMENT_UPDATES_OF(X, float)         \
  FSDP_ELEMENT_UPDATES_OF(X, std::uint16_t) \
  X(ElementUpdate<SgdRule, float>) X(KeepAndSquare) FSDP_NARROW_UPDATES(X)
#define FSDP_ELEMENT_UPDATES_OF(X, State)      \
  X(ElementUpdate<AdamRule<false>, State>)     \
  X(ElementUpdate<AdamRule<true>, State>)      \
  X(ElementUpdate<MomentumRule, State>)        \
  X(ElementUpdate<AdagradRule, State>)         \
  X(ElementUpdate<LionRule, State>)            \
  X(ElementUpdate<AdafactorVectorRule, State>) \
  X(ElementUpdate<MuonMomentumRule, State>)
#define FSDP_NARROW_UPDATES(X)     \
  X(NarrowUpdate<AdamRule<false>>) \
  X(NarrowUpdate<AdamRule<true>>)  \
  X(NarrowUpdate<MomentumRule>)    \
  X(NarrowUpdate<AdagradRule>)     \
  X(NarrowUpdate<LionRule>)

/// Bodies that read and write optimizer states of type State.
#define FSDP_OPTIMIZER_BODIES(X, State) \
  X(LambStatistics<State>)              \
  X(LambUpdate<State>)                  \
  X(VarianceStatistics<State>)

/// Bodies that add numbers of type In.
#define FSDP_SUM_BODIES(X, In) \
  X(SumRanks<float, In>)       \
  X(SumFewRanks<In, 2>)        \
  X(SumFewRanks<In, 4>)        \
  X(SumFewRanks<In, 8>)

/// Bodies that run only on the CPU.
#define FSDP_CPU_BODIES(X) X(ColumnSquares)

#define FSDP_ROW_BODIES(X)                  \
  FSDP_OPTIMIZER_BODIES(X, float)           \
  FSDP_OPTIMIZER_BODIES(X, std::uint16_t)   \
  X(ElementUpdate<KeepRule, std::uint16_t>) \
  X(ElementUpdate<AverageRule, float>)      \
  X(RowSquares)                             \
  X(DivideByNorm)                           \
  X(SquarePolynomial)                       \
  X(ColumnSquaresOfRows)                    \
  X(FactorUpdate)                           \
  X(FactoredSquares)                        \
  X(FactoredUpdate)                         \
  X(ColumnFinish)                           \
  X(Add)                                    \
  X(AddScaled)                              \
  X(JoinMoments)                            \
  X(ClipValues)                             \
  X(CopyPieces)                             \
  X(NormalFill)                             \
  X(UniformFill)                            \
  X(CountNonFinite)                         \
  X(Squares)                                \
  X(NormalizeSums)                          \
  X(FinishNorm)                             \
  X(AddLosses)                              \
  X(AddPredictions)                         \
  X(InverseMean)                            \
  FSDP_SUM_BODIES(X, float)                 \
  FSDP_SUM_BODIES(X, bf16)                  \
  FSDP_SUM_BODIES(X, f16)                   \
  X(SumRanks<double, double>)               \
  X(RoundShares<bf16>)                      \
  X(RoundShares<f16>)                       \
  X(RoundValues<bf16>)                      \
  X(RoundValues<f16>)                       \
  X(Convert<float, float>)                  \
  X(Convert<float, bf16>)                   \
  X(Convert<float, f16>)                    \
  X(Convert<bf16, float>)                   \
  X(Convert<f16, float>)                    \
  FSDP_ROW_BODIES_OF(X, float)              \
  FSDP_ROW_BODIES_OF(X, bf16)               \
  FSDP_ROW_BODIES_OF(X, f16)                \
  FSDP_LAYER_BODIES_OF(X, float)            \
  FSDP_LAYER_BODIES_OF(X, bf16)             \
  FSDP_LAYER_BODIES_OF(X, f16)

/// Bodies that only users' layers and losses have (rows/layers.hpp).
#define FSDP_LAYER_BODIES_OF(X, E)         \
  X(ActivationBackward<SiluActivation, E>) \
  X(ActivationBackward<TanhActivation, E>) \
  X(AddPositions<E>)                       \
  X(BatchNormBackward<E>)                  \
  X(BatchNormForward<E>)                   \
  X(BatchNormSums<E>)                      \
  X(BiasActivation<SiluActivation, E>)     \
  X(BiasActivation<TanhActivation, E>)     \
  X(BinaryCrossEntropy<E>)                 \
  X(CenteredSquares<E>)                    \
  X(ErrorLoss<AbsoluteError, E>)           \
  X(ErrorLoss<HuberError, E>)              \
  X(ErrorLoss<SquaredError, E>)            \
  X(SoftmaxBackward<E>)                    \
  X(SoftmaxForward<E>)                     \
  X(SwigluRowsBackward<E>)                 \
  X(SwigluRowsForward<E>)                  \
  X(TransposeRows<E>)                      \
  X(WeighClasses<E>)

/// Bodies on weights and activations of type E.
#define FSDP_ROW_BODIES_OF(X, E)                       \
  X(ActivationBackward<GeluActivation<Gelu::erf>, E>)  \
  X(ActivationBackward<GeluActivation<Gelu::tanh>, E>) \
  X(ActivationBackward<ReluActivation, E>)             \
  X(ActivationBackward<SigmoidActivation, E>)          \
  X(AddBias<E>)                                        \
  X(AddNoise<E>)                                       \
  X(AddResidual<E>)                                    \
  X(AppendToCache<E>)                                  \
  X(BiasActivation<GeluActivation<Gelu::erf>, E>)      \
  X(BiasActivation<GeluActivation<Gelu::tanh>, E>)     \
  X(BiasActivation<ReluActivation, E>)                 \
  X(BiasActivation<SigmoidActivation, E>)              \
  X(CachedAttention<E>)                                \
  X(ColumnSum<E>)                                      \
  X(CopyColumns<E>)                                    \
  X(CrossEntropy<E>)                                   \
  X(DequantizeInt8<E>)                                 \
  X(DequantizeNf4<E>)                                  \
  X(DropoutBody<E>)                                    \
  X(EmbeddingBackward<E>)                              \
  X(EmbeddingBackwardByToken<E>)                       \
  X(EmbeddingForward<E>)                               \
  X(Fill<E>)                                           \
  X(HeadNormBackward<E>)                               \
  X(HeadNormForward<E>)                                \
  X(JoinCache<E>)                                      \
  X(LayerNormBackward<E>)                              \
  X(LayerNormForward<E>)                               \
  X(LogitGradient<E>)                                  \
  X(LossAndGradient<E>)                                \
  X(LossTermsGradient<E>)                              \
  X(Multiply<E>)                                       \
  X(PositionBackward<E>)                               \
  X(RmsNormBackward<E>)                                \
  X(RmsNormForward<E>)                                 \
  X(RopeBody<E>)                                       \
  X(RotaryTable<E>)                                    \
  X(ScoreSoftmax<E>)                                   \
  X(ScoreSoftmaxBackward<E>)                           \
  X(SwigluBackward<E>)                                 \
  X(SwigluForward<E>)
