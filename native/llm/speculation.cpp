#include "llm/speculation.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace gpk::llm {

namespace {

constexpr std::int64_t kMostGuesses = Verifier::kMostRows - 1;
constexpr int kMostMisses = 2;  // after so many passes without a good guess the text goes another way

// One row a strategy: how a pass comes by its guesses.
struct StrategyRow {
    std::string_view name;
    Verifier::Guesses guesses = Verifier::Guesses::given;
    std::int64_t usual = 0;  // guesses of a pass
    // Guesses of the host; null where the device has them.
    std::vector<std::int32_t> (*propose)(Speculator&, std::int64_t most) = nullptr;
};
const StrategyRow kStrategies[] = {
    {.name = "none"},
    {.name = "ngram",
     .usual = 7,
     .propose = [](Speculator& s, std::int64_t most) { return s.look_up(most); }},
    {.name = "early_layers", .guesses = Verifier::Guesses::early_layers, .usual = 3},
    {.name = "jacobi", .guesses = Verifier::Guesses::kept, .usual = 7},
    {.name = "draft_model",
     .usual = 4,
     .propose = [](Speculator& s, std::int64_t most) { return s.ask_draft(most); }},
};

const StrategyRow& row_of(Strategy strategy) { return kStrategies[static_cast<std::size_t>(strategy)]; }

}  // namespace

Strategy strategy_from_name(std::string_view name) {
    std::string known;
    for (std::size_t i = 1; i < std::size(kStrategies); ++i) {
        if (kStrategies[i].name == name) return static_cast<Strategy>(i);
        if (static_cast<Strategy>(i) != Strategy::draft_model) known += str(kStrategies[i].name, ", ");
    }
    throw error(ErrorKind::value, {.call = "generate",
                                   .argument = "speculate",
                                   .expected = known + "or a model",
                                   .got = std::string(name)});
}

void check_speculation(const char* call, const Model& model, const Speculation& speculation) {
    const auto require = [&](const char* argument, std::int64_t most, std::int64_t got) {
        if (got >= 0 && got <= most) return;
        throw error(ErrorKind::value,
                    {.call = call, .argument = argument, .expected = str("1 to ", most), .got = str(got)});
    };
    require("guesses", kMostGuesses, speculation.guesses);
    require("early_layers", model.config().num_layers, speculation.layers);
}

Speculator::Speculator(Model& model, const Speculation& speculation, std::span<const std::int32_t> text)
    : model_(model), speculation_(speculation), text_(text.begin(), text.end()) {
    const std::int64_t layers = model.config().num_layers;
    check_speculation("speculate", model, speculation);
    if (speculation.guesses == 0) speculation_.guesses = row_of(speculation.strategy).usual;
    if (speculation.layers == 0) speculation_.layers = std::max<std::int64_t>(layers / 4, 1);
    if (speculation.strategy == Strategy::draft_model) {
        if (!speculation.draft || speculation.draft.get() == &model || speculation.draft->slots() != 1) {
            throw error(ErrorKind::value, {.call = "speculate",
                                           .argument = "draft",
                                           .expected = "another model, of one text",
                                           .got = speculation.draft ? "the same, or a batch" : "none"});
        }
        speculation.draft->truncate(0);
        speculation.draft->choose_by({}, {});  // the text it wrote before may have been drawn
    }
    model.verifier();
}

// The longest end of the text that stands earlier in it, of the places the last, and what followed there. One
// token alone says too little. Where there is none, what follows beside the place that was read before: an
// edit often puts one token for another.
std::vector<std::int32_t> Speculator::look_up(std::int64_t most) {
    constexpr std::size_t kLeast = 2, kEnough = 12;
    const std::size_t size = text_.size();
    std::size_t longest = kLeast - 1, after = 0;
    for (std::size_t end = size - 1; end > longest && longest < kEnough; --end) {  // of the earlier place
        std::size_t same = 0;
        while (same < end && same < kEnough && text_[end - 1 - same] == text_[size - 1 - same]) ++same;
        if (same > longest) {
            longest = same;
            after = end;
        }
    }
    if (after == 0) after = beside_;
    if (after == 0) return {};
    beside_ = after;
    // What followed may reach into the end itself: then it repeats.
    std::vector<std::int32_t> guesses;
    for (std::int64_t i = 0; i < most; ++i) {
        const std::size_t from = after + static_cast<std::size_t>(i);
        guesses.push_back(from < size ? text_[from] : guesses[from - size]);
    }
    return guesses;
}

std::vector<std::int32_t> Speculator::ask_draft(std::int64_t most) {
    Model& draft = *speculation_.draft;
    const auto same = std::mismatch(drafted_.begin(), drafted_.end(), text_.begin(), text_.end()).first;
    // The last token is always given anew: what follows it is asked for.
    auto kept = std::min<std::int64_t>(same - drafted_.begin(), static_cast<std::int64_t>(text_.size()) - 1);
    kept = std::min(kept, draft.length());
    const std::int64_t room = draft.max_length() - static_cast<std::int64_t>(text_.size());
    most = std::min(most, room + 1);
    const std::int64_t known = std::min(model_.config().num_tokens, draft.config().vocab_size);
    const auto fresh = std::span(text_).subspan(static_cast<std::size_t>(kept));
    if (most < 1 ||
        std::any_of(
            fresh.begin(), fresh.end(), [&](std::int32_t t) { return t >= draft.config().vocab_size; }))
        return {};
    constexpr std::size_t kSteps = 3;  // so many tokens are quicker one by one: their steps are graphs
    drafted_.clear();
    draft.truncate(kept);
    if (kept > 0 && fresh.size() <= kSteps) {
        for (const std::int32_t token : fresh) draft.decode(token);
    } else {
        draft.prefill(fresh);
    }
    for (std::int64_t i = 1; i < most; ++i) draft.decode();
    std::vector<std::int32_t> guesses;
    const auto first = static_cast<std::int64_t>(text_.size());
    drafted_ = text_;
    for (std::int64_t i = 0; i < most; ++i) {
        const std::int32_t token = draft.chosen_after(first + i);
        if (token >= known) break;
        guesses.push_back(token);
        if (i + 1 < most) drafted_.push_back(token);
    }
    return guesses;
}

// A pass of one row is a plain step.
Verifier::Pass Speculator::next_pass(std::int64_t most, std::vector<std::int32_t>& guesses) {
    const StrategyRow& row = row_of(speculation_.strategy);
    const std::int64_t room = std::min(most, model_.max_length() - model_.length());
    std::int64_t wanted = std::min(speculation_.guesses, room - 1);
    Verifier::Pass pass{.guesses = row.guesses, .rows = 1};
    if (wanted < 1) return pass;
    if (row.propose != nullptr) {
        guesses = row.propose(*this, wanted);
        if (guesses.empty()) return pass;
        wanted = static_cast<std::int64_t>(guesses.size());
    } else if (row.guesses == Verifier::Guesses::kept && !began_) {
        guesses.assign(static_cast<std::size_t>(wanted), text_.back());
        began_ = true;
    }
    pass.rows = std::min(Verifier::rows_for(wanted + 1), room);
    if (row.guesses == Verifier::Guesses::early_layers) pass.layers = speculation_.layers;
    return pass;
}

void Speculator::take_chosen() {
    const std::size_t before = text_.size();
    while (static_cast<std::int64_t>(text_.size()) <= model_.length()) {
        text_.push_back(model_.chosen_after(static_cast<std::int64_t>(text_.size())));
    }
    if (beside_ != 0) beside_ += text_.size() - before;
}

void Speculator::go_on(std::int64_t most) {
    std::vector<std::int32_t> guesses;
    const Verifier::Pass pass = next_pass(most, guesses);
    bool plain = pass.rows < 2;
    if (!plain) {
        const Verifier::Result result = model_.verifier().run(pass, text_.back(), guesses);
        const std::int64_t guessed = guesses.empty() || pass.guesses != Verifier::Guesses::given
                                         ? pass.rows - 1
                                         : static_cast<std::int64_t>(guesses.size());
        const std::int64_t good = std::min(result.moved - (result.close ? 0 : 1), guessed);
        misses_ = good > 0 ? 0 : misses_ + 1;
        if (misses_ > kMostMisses) beside_ = 0;
        ++stats_.passes;
        stats_.guessed += guessed;
        stats_.accepted += good;
        take_chosen();
        plain = result.close && result.moved < most && model_.length() < model_.max_length();
    }
    if (plain) {
        model_.decode(Model::Steps::op_by_op);
        ++stats_.steps;
        take_chosen();
    }
}

}  // namespace gpk::llm
