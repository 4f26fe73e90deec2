// Every row body, and the one list from which they are instantiated for each instruction set and for CUDA.
#pragma once

#include "kernels/rows/cross_entropy.hpp"
#include "kernels/rows/dropout.hpp"
#include "kernels/rows/embedding.hpp"
#include "kernels/rows/initial.hpp"
#include "kernels/rows/norm.hpp"
#include "kernels/rows/optimizer.hpp"
#include "kernels/rows/pointwise.hpp"
#include "kernels/rows/rope.hpp"
#include "kernels/rows/squares.hpp"

#define FSDP_ROW_BODIES(X)    \
  X(AdamWBody)                \
  X(AddBias)                  \
  X(AddResidual)              \
  X(BiasGelu<Gelu::erf>)      \
  X(BiasGelu<Gelu::tanh>)     \
  X(ColumnFinish)             \
  X(ColumnSum)                \
  X(CrossEntropy)             \
  X(DropoutBody)              \
  X(EmbeddingBackward)        \
  X(EmbeddingForward)         \
  X(Fill)                     \
  X(GeluBackward<Gelu::erf>)  \
  X(GeluBackward<Gelu::tanh>) \
  X(LayerNormBackward)        \
  X(LayerNormForward)         \
  X(NormalFill)               \
  X(PositionBackward)         \
  X(RmsNormBackward)          \
  X(RmsNormForward)           \
  X(RopeBody)                 \
  X(Squares)                  \
  X(SwigluBackward)           \
  X(SwigluForward)
