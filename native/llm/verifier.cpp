#include "llm/verifier.hpp"

#include <algorithm>
#include <bit>

#include "base/error.hpp"
#include "ops/accept_drafts.hpp"
#include "ops/creation.hpp"
#include "ops/elementwise.hpp"
#include "ops/next_token.hpp"

namespace gpk::llm {

static_assert(Verifier::kMostRows == kernels::kMostDraftRows);

Verifier::Verifier(Model& model) : model_(model), margin_(margin(model)) {
    if (model.slots() != 1) {
        throw error(
            ErrorKind::unsupported,
            {.call = "speculate", .expected = "a model of one slot", .got = str("one of ", model.slots())});
    }
    Device& device = model.device();
    const std::int64_t vocab = model.config().vocab_size;
    logits_ = Array::empty(device, {kMostRows, vocab}, DType::float32);
    draft_logits_ = Array::empty(device, {1, vocab}, DType::float32);
    draft_position_ = ops::zeros(device, {1}, DType::int32);
    best_ = ops::zeros(device, {2 * kMostRows}, DType::int32);
    counting_ = ops::arange_integer(device, 0, 1, kMostRows, DType::int32);
    each_ = ops::zeros(device, {kMostRows}, DType::int32);
    ticket_ = ops::zeros(device, {1}, DType::uint32);
    done_ = std::make_shared<Event>(device);
    accepted_ = PinnedPool::of(device).allocate(2 * sizeof(std::int32_t));
}

Verifier::~Verifier() { PinnedPool::of(model_.device()).release(accepted_, {done_}); }

std::int64_t Verifier::rows_for(std::int64_t rows) {
    const auto bucket =
        static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(rows, 2))));
    return std::min(bucket, kMostRows);
}

double Verifier::margin(const Model& model) {
    const ModelWeights& weights = model.weights();
    bool plain = weights.lm_head.codes.empty() && model.config().experts.count == 0;
    for (const ModelLayer& layer : weights.layers) {
        for (const Linear* each : {&layer.qkv, &layer.out, &layer.gate_up, &layer.down}) {
            plain = plain && each->codes.empty();
        }
    }
    const bool same_bits = plain && model.device().driver().info().sm >= 90;
    switch (weights.dtype) {
        case DType::bfloat16: return same_bits ? 0 : 0.12;
        case DType::float16: return same_bits ? 0 : 0.02;
        default: return 1e-4;
    }
}

void Verifier::queue(const Pass& pass) {
    Model& m = model_;
    const Model::Buffers& all = m.decode_buffers_;
    const auto num_tokens = m.config().num_tokens;
    const std::size_t layers = m.weights().layers.size();
    if (pass.guesses == Guesses::early_layers) {
        ops::assign(draft_position_, m.positions_);
        for (std::int64_t row = 0; row + 1 < pass.rows; ++row) {
            const Model::Buffers b = all.rows(row, 1);
            m.forward(b, Model::Place{0, std::nullopt, draft_position_, draft_position_},
                      static_cast<std::size_t>(pass.layers));
            m.head(b.normed, draft_logits_);
            ops::next_token(draft_logits_, num_tokens, 1, all.ids.slice(0, row + 1, 1, 1), draft_position_);
        }
    }
    const Model::Buffers b = all.rows(0, pass.rows);
    const Array logits = logits_.slice(0, 0, 1, pass.rows);
    const Array each = each_.slice(0, 0, 1, pass.rows);
    ops::binary(BinaryOp::add, counting_.slice(0, 0, 1, pass.rows), m.positions_, &each);
    m.forward(b, Model::Place{0, std::nullopt, m.positions_, each}, layers);
    m.head(b.normed, logits);
    ops::accept_drafts(logits, b.ids, m.positions_,
                       {.best = best_,
                        .ticket = ticket_,
                        .log = reinterpret_cast<std::int32_t*>(m.log_.data),
                        .log_size = m.max_length_ + 1,
                        .accepted = reinterpret_cast<std::int32_t*>(accepted_.data)},
                       {.count = num_tokens, .margin = margin_, .refill = pass.guesses == Guesses::kept});
}

Verifier::Result Verifier::run(const Pass& pass, std::int32_t last, std::span<const std::int32_t> guesses) {
    Model& m = model_;
    const std::int64_t room = std::min(kMostRows, m.max_length() - m.length());
    const bool layered =
        pass.guesses != Guesses::early_layers || (pass.layers >= 1 && pass.layers <= m.config().num_layers);
    if (m.length() == 0 || pass.rows < 2 || pass.rows > room || !layered) {
        throw error(ErrorKind::value,
                    {.call = "speculate",
                     .argument = "pass",
                     .expected = str("2 to ", room, " rows after a prompt, of the model's layers"),
                     .got = str(pass.rows, " rows, ", pass.layers, " layers")});
    }
    m.check_vocabulary("speculate", "guesses", guesses);
    const auto& stream = current_stream(m.device());
    const Array& ids = m.decode_buffers_.ids;
    try {
        if (!guesses.empty()) {
            std::vector<std::int32_t> filled(guesses.begin(), guesses.end());
            filled.resize(static_cast<std::size_t>(pass.rows - 1), filled.back());
            ids.slice(0, 1, 1, pass.rows - 1).copy_from_host(filled.data());
        }
        if (m.use_graph_) {
            graphs_.run(stream, pass, [&] { queue(pass); });
        } else {
            queue(pass);
        }
        done_->record(*stream);
        done_->synchronize();
    } catch (...) {
        m.set_position(0, m.length());
        ids.slice(0, 0, 1, 1).copy_from_host(&last);
        throw;
    }
    const auto* accepted = reinterpret_cast<const std::int32_t*>(accepted_.data);
    const Result result{.moved = accepted[0], .close = accepted[1] != 0};
    m.lengths_[0] += result.moved;
    m.mark();
    return result;
}

}  // namespace gpk::llm
