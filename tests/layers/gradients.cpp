// Layers and losses of the library and of a user: backward is the derivative of forward, and a wrong backward is found.
#include <boost/test/unit_test.hpp>

#include <cmath>
#include <functional>

#include <fsdp/check_gradients.hpp>
#include <fsdp/fsdp.hpp>

#include "gated_convolution.hpp"
#include "swiglu_layer.hpp"

using namespace fsdp;

namespace {

void require_right(const char* name, const GradientCheck& check) {
  BOOST_TEST(check.passed, name << ": " << check.where);
  BOOST_TEST(check.worst > 0, name << ": differences were computed");  // in fp32 they are never exactly equal
}

/// GatedConvolution with changed passes.
class Changed final : public Layer {
 public:
  explicit Changed(std::function<void(const BackwardPass&)> after, std::function<void(const ForwardPass&)> after_forward = {},
                   bool in_16_bits = false)
      : after_(std::move(after)), after_forward_(std::move(after_forward)), in_16_bits_(in_16_bits) {}
  std::vector<LayerParameter> parameters() const override { return layer_.parameters(); }
  std::size_t inputs() const override { return layer_.inputs(); }
  std::size_t outputs() const override { return layer_.outputs(); }
  std::size_t saved() const override { return layer_.saved(); }
  std::size_t scratch() const override { return layer_.scratch(); }
  bool works_in(DType type) const override { return in_16_bits_ || type == DType::f32; }
  void forward(const ForwardPass& pass) const override {
    layer_.forward(pass);
    if (after_forward_) after_forward_(pass);
  }
  void backward(const BackwardPass& pass) const override {
    layer_.backward(pass);
    if (after_) after_(pass);
  }

 private:
  GatedConvolution layer_{6, 3};
  std::function<void(const BackwardPass&)> after_;
  std::function<void(const ForwardPass&)> after_forward_;
  bool in_16_bits_;
};

/// y = x + W2 gelu(W1 x + b), or with an RMSNorm of fixed weights instead of gelu. The inner width is larger than those of
/// inputs and outputs.
class Widening final : public Layer {
 public:
  enum class Inside { gelu, norm };
  Widening(Inside inside, Shape bias) : inside_(inside), bias_(std::move(bias)) {}
  std::vector<LayerParameter> parameters() const override {
    return {{"up", {hidden, width}, normal(0.3f)}, {"bias", bias_, normal(0.3f)}, {"down", {width, hidden}, normal(0.02f)}};
  }
  std::size_t inputs() const override { return width; }
  std::size_t outputs() const override { return width; }
  std::size_t scratch() const override { return 4 * hidden + 1; }
  void forward(const ForwardPass& pass) const override {
    inner(pass);
    ops::linear(pass, in_scratch(pass, 1), pass.parameter(2), {}, pass.y);
    ops::add(pass, pass.y, pass.y, pass.x);
  }
  void backward(const BackwardPass& pass) const override {
    inner(pass);
    const Tensor h = in_scratch(pass, 0), a = in_scratch(pass, 1), da = in_scratch(pass, 2), dh = in_scratch(pass, 3);
    ops::linear_backward(pass, a, pass.parameter(2), pass.dy, da, pass.gradient(2), {});
    if (inside_ == Inside::gelu)
      ops::gelu_backward(pass, h, da, dh);
    else
      ops::rms_norm_backward(pass, h, ones(), stats(pass), da, dh, {});
    ops::linear_backward(pass, pass.x, pass.parameter(0), dh, pass.dx, pass.gradient(0), pass.gradient(1));
    ops::add(pass, pass.dx, pass.dx, pass.dy);
  }

  static constexpr std::size_t width = 4, hidden = 1024;

 private:
  static Tensor in_scratch(const Pass& pass, std::size_t k) {
    return {pass.scratch.floats() + k * pass.rows() * hidden, pass.rows(), hidden, hidden, DType::f32};
  }
  static Tensor stats(const Pass& pass) {
    return {pass.scratch.floats() + 4 * pass.rows() * hidden, pass.rows(), 1, 1, DType::f32};
  }
  static Tensor ones() {
    static std::vector<float> values(hidden, 1);
    return {values.data(), 1, hidden, hidden, DType::f32};
  }
  void inner(const Pass& pass) const {
    ops::linear(pass, pass.x, pass.parameter(0), pass.parameter(1), in_scratch(pass, 0));
    if (inside_ == Inside::gelu)
      ops::gelu(pass, in_scratch(pass, 0), in_scratch(pass, 1));
    else
      ops::rms_norm(pass, in_scratch(pass, 0), ones(), 1e-5f, in_scratch(pass, 1), stats(pass));
  }

  Inside inside_;
  Shape bias_;
};

/// The sum of w (x - target)^2 over the columns; it adds to the gradient if w is trained.
class WeightedSquares final : public Loss {
 public:
  std::vector<LayerParameter> parameters() const override { return {{"weight", {width}, uniform(1)}}; }
  std::size_t inputs() const override { return width; }
  std::size_t targets() const override { return width; }
  bool takes_labels() const override { return false; }
  void evaluate(const LossPass& pass) const override {
    const float* const weight = pass.parameter(0).floats();
    const Tensor d_weight = pass.gradient(0);
    for (std::size_t r = 0; r < pass.rows(); ++r) {
      pass.losses[r] = 0;
      for (std::size_t c = 0; c < width; ++c) {
        const float d = pass.x.row(r)[c] - pass.targets.row(r)[c];
        pass.losses[r] += weight[c] * d * d;
        if (pass.dx) pass.dx.row(r)[c] = pass.scale * 2 * weight[c] * d;
        if (d_weight) d_weight.floats()[c] += pass.scale * d * d;
      }
    }
  }
  static constexpr std::size_t width = 3;
};

void require_found(const GradientCheck& check, const std::string& said) {
  BOOST_TEST(!check.passed);
  BOOST_TEST(check.where.find(said) != std::string::npos, "'" << check.where << "' does not say '" << said << "'");
}

/// The sum of the rows of a table that two indices select.
class TwoIndices final : public Layer {
 public:
  std::vector<LayerParameter> parameters() const override { return {{"table", {3, 4}, normal(0.3f)}}; }
  std::size_t inputs() const override { return 2; }
  std::size_t outputs() const override { return 4; }
  bool takes_tokens() const override { return true; }
  void forward(const ForwardPass& pass) const override {
    for (std::size_t i = 0; i < pass.y.numel(); ++i)
      pass.y.floats()[i] =
          pass.parameter(0).get(index(pass, i / 4, 0), i % 4) + pass.parameter(0).get(index(pass, i / 4, 1), i % 4);
  }
  void backward(const BackwardPass& pass) const override {
    const Tensor d = pass.gradient(0);
    for (std::size_t i = 0; d && i < pass.dy.numel(); ++i)
      for (const std::size_t k : {0, 1}) d.row(index(pass, i / 4, k))[i % 4] += pass.dy.floats()[i];
  }

 private:
  static std::size_t index(const Pass& pass, std::size_t r, std::size_t k) {
    return static_cast<std::size_t>(pass.tokens[2 * r + k]);
  }
};

}  // namespace

BOOST_AUTO_TEST_CASE(of_all_layers) {
  require_right("linear", check_gradients(*linear(7, 5)));
  require_right("linear without bias", check_gradients(*linear(3, 11, false)));
  require_right("gelu", check_gradients(*gelu(9)));
  require_right("gelu, erf", check_gradients(*gelu(9, ops::Gelu::erf)));
  require_right("silu", check_gradients(*silu(9)));
  require_right("tanh", check_gradients(*fsdp::tanh(9)));
  require_right("sigmoid", check_gradients(*sigmoid(9)));
  require_right("swiglu of columns", check_gradients(*fsdp::swiglu(6)));
  require_right("softmax", check_gradients(*softmax(9)));
  require_right("log_softmax", check_gradients(*log_softmax(9)));
  require_right("dropout", check_gradients(*dropout(9, 0.4)));
  require_right("position_embedding", check_gradients(*position_embedding(6, 4)));
  require_right("position_embedding of one position", check_gradients(*position_embedding(1, 4), {.T = 1}));
  require_right("transpose", check_gradients(*transpose(3, 4)));
  require_right("identity", check_gradients(*identity(5)));
  require_right("layer_norm", check_gradients(*layer_norm(13)));
  require_right("rms_norm", check_gradients(*rms_norm(13)));
  for (const bool synchronized : {true, false})
    require_right("batch_norm", check_gradients(*batch_norm(13, 1e-5f, 0.1f, synchronized), {.B = 5}));
  require_right(
      "batch_norm inside others",
      check_gradients(*residual(sequential({{"up", linear(5, 7)}, {"bn", batch_norm(7)}, {"down", linear(7, 5)}})), {.B = 5}));
  require_right("embedding", check_gradients(*embedding(5, 7)));
  require_right("two indices", check_gradients(TwoIndices()));
  require_right("sigmoid and product", check_gradients(GatedConvolution(10, 4)));
  require_right("swiglu", check_gradients(SwigluLayer(6, 11)));
  require_right("a layer that is longer than its sequences", check_gradients(GatedConvolution(3, 9), {.B = 3, .T = 2}));
  require_right("a layer that is wide inside", check_gradients(Widening(Widening::Inside::gelu, {Widening::hidden})));
  require_right("a norm of numbers in scratch", check_gradients(Widening(Widening::Inside::norm, {Widening::hidden})));
}

BOOST_AUTO_TEST_CASE(places_without_a_derivative_are_no_fault) {
  for (std::uint32_t seed = 1; seed <= 40; ++seed)
    require_right(("relu, seed " + std::to_string(seed)).c_str(), check_gradients(*relu(64), {.seed = seed}));
}

namespace {

/// Attention to a mask, as a user would write it: y = x * gate(mask), from rows of three numbers and a mask.
class Masked final : public Layer {
 public:
  std::size_t inputs() const override { return 4; }
  std::size_t outputs() const override { return 3; }
  void forward(const ForwardPass& pass) const override {
    for (std::size_t r = 0; r < pass.rows(); ++r)
      for (std::size_t c = 0; c < 3; ++c) pass.y.row(r)[c] = pass.x.row(r)[c] * pass.x.row(r)[3];
  }
  void backward(const BackwardPass& pass) const override {
    for (std::size_t r = 0; r < pass.rows(); ++r) {
      pass.dx.row(r)[3] = 0;
      for (std::size_t c = 0; c < 3; ++c) {
        pass.dx.row(r)[c] = pass.dy.row(r)[c] * pass.x.row(r)[3];
        pass.dx.row(r)[3] += pass.dy.row(r)[c] * pass.x.row(r)[c];
      }
    }
  }
};

/// A user's own layer of layers: y = up(x) * gate(x), with memory of its own beside that of the inner layers.
class Gated final : public Composition {
 public:
  Gated() : Composition("Gated", {{"up", linear(5, 7)}, {"gate", sequential({{"in", linear(5, 7)}, {"norm", rms_norm(7)}})}}) {}
  std::size_t outputs() const override { return 7; }
  std::size_t saved() const override { return Composition::saved() + 14; }
  std::size_t scratch() const override { return Composition::scratch() + 12; }
  void forward(const ForwardPass& pass) const override {
    const Tensor up = part(pass, 0), gate = part(pass, 1);
    run_forward(pass, 0, pass.x, up);
    run_forward(pass, 1, pass.x, gate);
    ops::multiply(pass, pass.y, up, gate);
  }
  void backward(const BackwardPass& pass) const override {
    const Tensor d = pass.scratch.part(Composition::scratch(), 7), more = pass.scratch.part(Composition::scratch() + 7, 5);
    ops::multiply(pass, d, pass.dy, part(pass, 1));
    run_backward(pass, 0, pass.x, d, pass.dx);
    ops::multiply(pass, d, pass.dy, part(pass, 0));
    run_backward(pass, 1, pass.x, d, more);
    ops::add(pass, pass.dx, pass.dx, more);
  }

 private:
  template <class AnyPass>
  Tensor part(const AnyPass& pass, std::size_t i) const {
    return pass.saved.part(Composition::saved() + 7 * i, 7);
  }
};

}  // namespace

BOOST_AUTO_TEST_CASE(of_layers_in_layers) {
  const auto mlp = [] {
    return sequential({{"norm", layer_norm(6)}, {"up", linear(6, 11)}, {"gelu", gelu(11)}, {"down", linear(11, 6)}});
  };
  const auto own = [] { return std::make_shared<GatedConvolution>(6, 3); };
  const auto inside = [&] { return residual(sequential({{"own", own()}, {"mlp", mlp()}})); };
  const std::pair<const char*, LayerPtr> layers[] = {
      {"sequential", mlp()},
      {"sequential of one", sequential({{"only", linear(6, 4)}})},
      {"residual", residual(mlp())},
      {"residual of a user's layer", residual(own())},
      {"residual beside a mask", residual(std::make_shared<Masked>())},
      {"sum", parallel({{"wide", mlp()}, {"own", own()}, {"thin", linear(6, 6, false)}})},
      {"sum of one", parallel({{"only", own()}})},
      {"concatenation", parallel({{"wide", mlp()}, {"own", own()}, {"thin", linear(6, 2)}}, Join::concatenate)},
      {"concatenation of tokens", parallel({{"a", embedding(9, 4)}, {"b", embedding(7, 3)}}, Join::concatenate)},
      {"sum of tokens", parallel({{"a", embedding(9, 4)}, {"b", embedding(7, 4)}})},
      {"kept columns", keep_columns(2, mlp())},
      {"kept columns of a user's layer", keep_columns(1, residual(own()))},
      {"selected columns", select_columns(7, 2, 3)},
      {"positions", positions(3, inside())},
      {"positions of positions", positions(2, positions(3, linear(4, 2)))},
      {"a user's layer of layers",
       residual(sequential({{"down", linear(6, 5)}, {"gated", std::make_shared<Gated>()}, {"up", linear(7, 6)}}))},
      {"a mask beside a block",
       sequential({{"norm", keep_columns(1, rms_norm(3))}, {"attention", residual(std::make_shared<Masked>())}})},
      {"repeat", repeat(3, [&](std::size_t) { return residual(mlp()); })},
      {"nested", residual(parallel({{"a", repeat(2, [&](std::size_t) { return own(); })}, {"b", residual(rms_norm(6))}}))}};
  for (const auto& [name, layer] : layers) require_right(name, check_gradients(*layer));
  std::vector<std::string> names;
  for (const LayerParameter& parameter : repeat(2, [](std::size_t) { return residual(linear(3, 3)); })->parameters())
    names.push_back(parameter.name);
  BOOST_TEST(names == (std::vector<std::string>{"0.weight", "0.bias", "1.weight", "1.bias"}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(layers_in_layers_that_do_not_fit_are_refused) {
  const auto refused = [](const std::function<LayerPtr()>& make, const std::string& message) {
    BOOST_CHECK_EXCEPTION(make(), UserError, [&](const UserError& error) {
      const std::string said = error.what();
      BOOST_TEST(said.find(message) != std::string::npos, said);
      return true;
    });
  };
  refused([] { return sequential({}); }, "sequential() has no layers");
  refused(
      [] {
        return sequential({{"a", linear(3, 4)}, {"b", linear(5, 3)}});
      },
      "layer 'b' takes 5 numbers per row (layer 'a' before it gives 4)");
  refused([] { return sequential({{"a", linear(3, 3)}, {"a", linear(3, 3)}}); }, "has the name 'a'");
  refused([] { return sequential({{"a", nullptr}}); }, "layer 'a' of sequential() is null");
  refused([] { return sequential({{"tokens", embedding(5, 3)}}); }, "takes tokens");
  refused([] { return residual(linear(3, 4)); }, "residual() adds 4 outputs to 3 inputs");
  refused(
      [] {
        return parallel({{"a", linear(3, 4)}, {"b", linear(3, 5)}});
      },
      "layer 'b' of parallel() maps 3 to 5, and layer 'a' 3 to 4; make them equal");
  refused(
      [] {
        return parallel({{"a", embedding(3, 4)}, {"b", linear(1, 4)}});
      },
      "'b' of parallel() maps 1 to 4, and layer 'a' 1 token");
  refused([] { return keep_columns(1, nullptr); }, "layer '' of keep_columns() is null");
  refused([] { return select_columns(4, 3, 2); }, "these columns do not exist (the input has 4");
  refused([] { return select_columns(4, 2, 0); }, "these columns do not exist");
  refused([] { return positions(0, linear(3, 3)); }, "positions() has 0 positions");
}

BOOST_AUTO_TEST_CASE(vectors_are_one_row) {
  for (const Shape& shape : {Shape{Widening::hidden, 1}, Shape{Widening::hidden / 4, 4}})
    require_found(check_gradients(Widening(Widening::Inside::gelu, shape)), "a bias [1, out] of y's type");
}

BOOST_AUTO_TEST_CASE(of_all_losses) {
  require_right("cross_entropy", check_gradients(*cross_entropy(7)));
  require_right("cross_entropy with terms", check_gradients(*cross_entropy(7, 0.2, 0.05)));
  const std::vector<float> weights = {0.5f, 2, 0, 1, 3, 0.25f, 1};
  require_right("cross_entropy with weights", check_gradients(*cross_entropy(7, {.weight = weights})));
  require_right("cross_entropy with weights and terms",
                check_gradients(*cross_entropy(7, {.label_smoothing = 0.2, .z_loss = 0.05, .weight = weights})));
  require_right("mean_squared_error", check_gradients(*mean_squared_error(5)));
  require_right("l1_loss", check_gradients(*l1_loss(5)));
  require_right("huber_loss", check_gradients(*huber_loss(5, 0.7)));
  require_right("smooth_l1_loss", check_gradients(*smooth_l1_loss(5, 0.7)));
  require_right("binary_cross_entropy_with_logits", check_gradients(*binary_cross_entropy_with_logits(5)));
  require_right("binary_cross_entropy_with_logits with weights",
                check_gradients(*binary_cross_entropy_with_logits(7, weights)));
  require_right("a loss with a parameter", check_gradients(WeightedSquares()));
}

BOOST_AUTO_TEST_CASE(what_is_wrong_is_found_and_named) {
  const auto check_with = [](const std::function<void(const BackwardPass&)>& change) {
    return check_gradients(Changed(change));
  };
  BOOST_TEST(check_with([](const BackwardPass&) {}).passed);
  const GradientCheck dx = check_with([](const BackwardPass& pass) { pass.dx.row(1)[2] += 1; });
  BOOST_TEST(!dx.passed);
  BOOST_TEST(dx.where.starts_with("x[1, 2]: backward gives "), dx.where);
  const GradientCheck filter = check_with([](const BackwardPass& pass) { pass.gradient(1).row(2)[4] += 1; });
  BOOST_TEST(!filter.passed);
  BOOST_TEST(filter.where.starts_with("layer.filter[2, 4]: "), filter.where);
  const GradientCheck overwritten = check_with([](const BackwardPass& pass) {
    static float once = 0;  // the result of the first of two passes
    float& gradient = pass.gradient(1).row(0)[0];
    if (once == 0) once = gradient;
    gradient = once;
  });
  BOOST_TEST(!overwritten.passed);
  BOOST_TEST(overwritten.where.find("backward must add to it") != std::string::npos, overwritten.where);
  const GradientCheck nan = check_with([](const BackwardPass& pass) { pass.gradient(0).row(0)[0] = std::nanf(""); });
  BOOST_TEST(!nan.passed);
  BOOST_TEST(nan.where.starts_with("layer.gate[0, 0]: backward gives nan"), nan.where);
}

BOOST_AUTO_TEST_CASE(memory_that_is_not_written_is_found) {
  require_found(check_gradients(Changed({}, [](const ForwardPass& pass) { pass.y.row(1)[2] = std::nanf(""); })),
                "y[1, 2] is NaN or was not written");
  class ForgetsDx final : public Layer {
   public:
    std::size_t inputs() const override { return 3; }
    std::size_t outputs() const override { return 3; }
    void forward(const ForwardPass& pass) const override { ops::copy(pass, pass.y, pass.x); }
    void backward(const BackwardPass&) const override {}  // right by chance if dx and dy share memory
  };
  require_found(check_gradients(ForgetsDx()), "dx[0, 0] is NaN or was not written");
  class ReadsScratch final : public Layer {
   public:
    std::size_t inputs() const override { return 3; }
    std::size_t outputs() const override { return 3; }
    std::size_t scratch() const override { return 3; }
    void forward(const ForwardPass& pass) const override { ops::add(pass, pass.y, pass.x, pass.scratch); }
    void backward(const BackwardPass& pass) const override { ops::copy(pass, pass.dx, pass.dy); }
  };
  require_found(check_gradients(ReadsScratch()), "y[0, 0] is NaN or was not written");
}

BOOST_AUTO_TEST_CASE(what_depends_on_more_than_its_inputs_is_found) {
  int calls = 0;
  require_found(check_gradients(Changed({}, [&](const ForwardPass& pass) { pass.y.row(0)[1] += static_cast<float>(++calls); })),
                "y[0, 1]: forward gives ");
}

BOOST_AUTO_TEST_CASE(passes_that_write_what_they_read_are_found) {
  require_found(check_gradients(Changed([](const BackwardPass& pass) { pass.parameter(0).row(0)[0] = 7; })),
                "layer 'layer': backward has changed gate, which it must only read");
  require_found(check_gradients(Changed({}, [](const ForwardPass& pass) { pass.x.row(1)[1] += 1; })),
                "layer 'layer': forward has changed x, which it must only read");
}

BOOST_AUTO_TEST_CASE(gradients_that_are_not_scaled_are_found) {
  class Square final : public Loss {
   public:
    std::size_t inputs() const override { return 1; }
    bool takes_labels() const override { return false; }
    void evaluate(const LossPass& pass) const override {
      for (std::size_t r = 0; r < pass.rows(); ++r) {
        const float error = pass.x.row(r)[0] - pass.targets.row(r)[0];
        pass.losses[r] = error * error;
        if (pass.dx) pass.dx.row(r)[0] = 2 * error;
      }
    }
  };
  require_found(check_gradients(Square()), "dx[0, 0]: evaluate with scale 0.25 gives ");
  BOOST_CHECK_THROW(check_gradients(*gelu(4), {.B = 0}), UserError);
}

BOOST_AUTO_TEST_CASE(what_is_wrong_where_parameters_are_frozen_is_found) {
  require_found(check_gradients(Changed([](const BackwardPass& pass) {
                  if (!pass.gradient(1)) pass.dx.row(0)[0] += 1;
                })),
                "if layer.filter is frozen, backward gives dx[0, 0] as ");
  require_found(check_gradients(Changed([](const BackwardPass& pass) { pass.gradient(0).row(0)[0] += 0; })),
                "if layer.gate is frozen: layer 'layer': row 0 in fp32 of an empty tensor");
  require_found(check_gradients(Changed([](const BackwardPass& pass) {
                  if (!pass.gradient(0) && !pass.gradient(1)) pass.dx.row(2)[0] *= 2;
                })),
                "if all parameters are frozen, backward gives dx[2, 0] as ");
}

BOOST_AUTO_TEST_CASE(what_is_wrong_in_16_bits_is_found) {
  BOOST_TEST(check_gradients(Changed({}, {}, true)).passed);
  require_found(check_gradients(Changed(
                    [](const BackwardPass& pass) {
                      if (pass.type == DType::bf16) pass.dx.set(3, 1, -pass.dx.get(3, 1));
                    },
                    {}, true)),
                "dx[3, 1]: ");
  require_found(check_gradients(Changed([](const BackwardPass& pass) { pass.dx.row(0); }, {}, true)),
                "layer 'layer': row 0 in fp32 of a tensor [10, 6] in bf16");
}
