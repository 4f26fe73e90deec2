// BatchNorm over the rows of all ranks, or of each rank.
#include <cmath>
#include <memory>

#include "base/element.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "kernels/layers.hpp"
#include "layers/layers.hpp"
#include "layers/place.hpp"

namespace fsdp {

namespace {

class BatchNorm final : public Layer {
 public:
  BatchNorm(std::size_t width, float eps, float momentum, bool synchronized)
      : C_(width), eps_(eps), momentum_(momentum), synchronized_(synchronized) {
    require_size("batch_norm", "width", width);
    if (!(eps > 0 && std::isfinite(eps)))
      throw UserError(format("batch_norm() has eps {} (it must be above 0, and finite); correct it", eps));
    if (!(momentum > 0 && momentum <= 1))
      throw UserError(format("batch_norm() has momentum {} (it must be above 0, and at most 1); correct it", momentum));
  }
  std::vector<LayerParameter> parameters() const override {
    return {{"weight", {C_}, constant(1)},
            {"bias", {C_}, constant(0)},
            {"running_mean", {C_}, constant(0), LayerParameter::Kind::state, momentum_},
            {"running_var", {C_}, constant(1), LayerParameter::Kind::state, momentum_}};
  }
  std::size_t inputs() const override { return C_; }
  std::size_t outputs() const override { return C_; }
  /// 4 C numbers for the whole batch, divided by its rows: statistics[2,C], then the mean and variance to which states move.
  MemorySizes sizes(const BatchSizes& batch) const override {
    return {.saved_floats = (4 * C_ + batch.rows() - 1) / batch.rows()};
  }
  std::size_t gathers() const override { return synchronized_ ? 2 * C_ : 0; }
  bool works_in(DType) const override { return true; }
  bool works_on_gpu() const override { return true; }

  void forward(const ForwardPass& pass) const override {
    float *const stats = pass.stats.floats(), *const mean = stats + 2 * C_, *const variance = mean + C_;
    const std::size_t R = pass.rows();
    with_element(pass.type, [&]<class E>() {
      const E* const x = in<E>(pass.x);
      if (pass.training()) {
        const Tensor own = sums_of(pass);
        kernels::column_moments(*pass.stream, own.floats(), x, R, C_, pass.sums);
        const Tensor all = synchronized_ ? pass.gather(own) : own;
        if (all.rows * R == 1)
          throw UserError("training with one row (the variance needs at least two); raise the number of rows of a batch");
        kernels::join_moments(*pass.stream, stats, mean, variance, all.floats(), all.rows, R, C_, eps_);
      } else {  // the running statistics are the moments of one row
        for (const std::size_t i : {0, 1}) pass.stream->copy(mean + i * C_, pass.parameter(2 + i).floats(), C_ * sizeof(float));
        kernels::join_moments(*pass.stream, stats, nullptr, nullptr, mean, 1, 1, C_, eps_);
      }
      kernels::batch_norm_forward(*pass.stream, static_cast<E*>(pass.y.data), x, stats, in<E>(pass.parameter(0)),
                                  in<E>(pass.parameter(1)), R, C_);
    });
  }

  void backward(const BackwardPass& pass) const override {
    const float *const stats = pass.stats.floats(), *const next = stats + 2 * C_;
    const std::size_t R = pass.rows();
    with_element(pass.type, [&]<class E>() {
      const E *const x = in<E>(pass.x), *const dy = in<E>(pass.dy);
      const Tensor own = sums_of(pass);
      std::size_t count = 0;  // of the rows on which the statistics depend
      if (pass.training()) {
        kernels::batch_norm_sums(*pass.stream, own.floats(), dy, x, stats, R, C_, pass.sums);
        for (const std::size_t i : {0, 1})  // weight, bias
          if (const Tensor gradient = pass.gradient(i))
            kernels::add(*pass.stream, gradient.floats(), own.floats() + (1 - i) * C_, C_);
        const Tensor all = synchronized_ ? pass.gather(own) : own;
        if (all.rows > 1) kernels::join_sums(*pass.stream, own.floats(), all.floats(), all.rows, C_);
        count = all.rows * R;
      }
      if (pass.dx)
        kernels::batch_norm_backward(*pass.stream, static_cast<E*>(pass.dx.data), dy, x, stats, in<E>(pass.parameter(0)),
                                     own.floats(), count, R, C_);
    });
    for (const std::size_t i : {0, 1})
      if (const Tensor to = pass.next(2 + i)) pass.stream->copy(to.data, next + i * C_, C_ * sizeof(float));
  }

 private:
  template <class E>
  static const E* in(const Tensor& tensor) {
    return static_cast<const E*>(tensor.data);
  }
  /// Memory for 2 C sums of a pass.
  Tensor sums_of(const Pass& pass) const { return {pass.unwanted, 1, 2 * C_, 2 * C_}; }

  const std::size_t C_;
  const float eps_, momentum_;
  const bool synchronized_;
};

}  // namespace

LayerPtr batch_norm(std::size_t width, float eps, float momentum, bool synchronized) {
  return std::make_shared<BatchNorm>(width, eps, momentum, synchronized);
}

}  // namespace fsdp
