// Launches the operations of users' layers and losses.
#include "kernels/layers.hpp"

#include "base/narrow.hpp"
#include "kernels/launch.hpp"
#include "kernels/rows/bodies.hpp"

namespace fsdp::kernels {

template <class E>
void silu_forward(Stream& stream, E* y, E* x, std::size_t R, std::size_t C) {
  launch(stream, BiasActivation<SiluActivation, E>{y, x, nullptr, C}, R);
}
template <class E>
void silu_backward(Stream& stream, E* dx, const E* dy, const E* x, std::size_t n) {
  launch(stream, ActivationBackward<SiluActivation, E>{dx, dy, x, n}, flat_blocks(n));
}
template <class E>
void tanh_forward(Stream& stream, E* y, E* x, std::size_t R, std::size_t C) {
  launch(stream, BiasActivation<TanhActivation, E>{y, x, nullptr, C}, R);
}
template <class E>
void tanh_backward(Stream& stream, E* dx, const E* dy, const E* x, std::size_t n) {
  launch(stream, ActivationBackward<TanhActivation, E>{dx, dy, x, n}, flat_blocks(n));
}

template <class E>
void softmax_forward(Stream& stream, SoftmaxForm form, E* y, const E* x, std::size_t R, std::size_t C) {
  launch(stream, SoftmaxForward<E>{y, x, C, form}, R);
}
template <class E>
void softmax_backward(Stream& stream, SoftmaxForm form, E* dx, const E* dy, const E* x, std::size_t R, std::size_t C) {
  launch(stream, SoftmaxBackward<E>{dx, dy, x, C, form}, R);
}

template <class E>
void swiglu_rows_forward(Stream& stream, StridedRows<E> out, StridedRows<const E> gate, StridedRows<const E> up, std::size_t R,
                         std::size_t C) {
  launch(stream, SwigluRowsForward<E>{out, gate, up, C}, R);
}
template <class E>
void swiglu_rows_backward(Stream& stream, StridedRows<E> d_gate, StridedRows<E> d_up, StridedRows<const E> d_out,
                          StridedRows<const E> gate, StridedRows<const E> up, std::size_t R, std::size_t C) {
  launch(stream, SwigluRowsBackward<E>{d_gate, d_up, d_out, gate, up, C}, R);
}

template <class E>
void add_positions(Stream& stream, E* y, const E* x, const E* table, std::size_t R, std::size_t T, std::size_t C) {
  launch(stream, AddPositions<E>{y, x, table, T, C}, R);
}
template <class E>
void transpose_rows(Stream& stream, E* y, const E* x, std::size_t R, std::size_t M, std::size_t N) {
  launch(stream, TransposeRows<E>{y, x, narrow<std::uint32_t>(M), narrow<std::uint32_t>(N)}, R);
}

template <class E>
void squared_error(Stream& stream, const LossRows<E>& rows) {
  launch(stream, ErrorLoss<SquaredError, E>{rows, {}}, rows.R);
}
template <class E>
void absolute_error(Stream& stream, const LossRows<E>& rows) {
  launch(stream, ErrorLoss<AbsoluteError, E>{rows, {}}, rows.R);
}
template <class E>
void huber_error(Stream& stream, const LossRows<E>& rows, float delta, float factor) {
  launch(stream, ErrorLoss<HuberError, E>{rows, {delta, factor}}, rows.R);
}
template <class E>
void binary_cross_entropy(Stream& stream, const LossRows<E>& rows, const float* pos_weight) {
  launch(stream, BinaryCrossEntropy<E>{rows, pos_weight}, rows.R);
}

template <class E>
void weigh_classes(Stream& stream, float* loss, const Logits<E>& logits, const float* weights, const LossTerms& terms,
                   bool backward, float gradient_scale) {
  expect(logits.piece == logits.V && logits.alignment == 1, "weighted classes are in one piece");
  launch(stream,
         WeighClasses<E>{loss, logits.values, logits.stats, logits.targets, weights, logits.V, gradient_scale,
                         terms.label_smoothing, terms.label_smoothing / static_cast<float>(logits.V), terms.z_loss, backward},
         logits.R);
}

#define FSDP_INSTANTIATE(E)                                                                                               \
  template void silu_forward(Stream&, E*, E*, std::size_t, std::size_t);                                                  \
  template void silu_backward(Stream&, E*, const E*, const E*, std::size_t);                                              \
  template void tanh_forward(Stream&, E*, E*, std::size_t, std::size_t);                                                  \
  template void tanh_backward(Stream&, E*, const E*, const E*, std::size_t);                                              \
  template void softmax_forward(Stream&, SoftmaxForm, E*, const E*, std::size_t, std::size_t);                            \
  template void softmax_backward(Stream&, SoftmaxForm, E*, const E*, const E*, std::size_t, std::size_t);                 \
  template void swiglu_rows_forward(Stream&, StridedRows<E>, StridedRows<const E>, StridedRows<const E>, std::size_t,     \
                                    std::size_t);                                                                         \
  template void swiglu_rows_backward(Stream&, StridedRows<E>, StridedRows<E>, StridedRows<const E>, StridedRows<const E>, \
                                     StridedRows<const E>, std::size_t, std::size_t);                                     \
  template void add_positions(Stream&, E*, const E*, const E*, std::size_t, std::size_t, std::size_t);                    \
  template void transpose_rows(Stream&, E*, const E*, std::size_t, std::size_t, std::size_t);                             \
  template void squared_error(Stream&, const LossRows<E>&);                                                               \
  template void absolute_error(Stream&, const LossRows<E>&);                                                              \
  template void huber_error(Stream&, const LossRows<E>&, float, float);                                                   \
  template void binary_cross_entropy(Stream&, const LossRows<E>&, const float*);                                          \
  template void weigh_classes(Stream&, float*, const Logits<E>&, const float*, const LossTerms&, bool, float);
FSDP_FOR_ELEMENTS(FSDP_INSTANTIATE)

}  // namespace fsdp::kernels
