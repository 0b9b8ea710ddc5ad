// Language models: configured and streamed from Python (pygpukit/llm), computed here.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <mutex>

#include "bindings/io.hpp"
#include "llm/batch.hpp"
#include "llm/checkpoint.hpp"

namespace gpk::python {

namespace {

using Tokens = std::vector<std::int32_t>;

Error closed(const char* call, const char* what) {
    return error(ErrorKind::value, {.call = call,
                                    .expected = str("a ", what, " that is open"),
                                    .got = "one that was closed",
                                    .fix = "load the model again"});
}

// A batch with slots of its own; the weights are the model's.
class PyBatch {
   public:
    PyBatch(const llm::Model& model, std::int64_t slots)
        : model_(std::make_unique<llm::Model>(
              model.shared_weights(),
              llm::ModelOptions{
                  .max_length = model.max_length(), .slots = slots, .cache_dtype = model.cache_dtype()})),
          batch_(*model_),
          slots_(slots) {}

    // Calls `work` with the batch while no other thread has it. Throws Error (value) where it is closed.
    template <class Work>
    auto locked(const char* call, Work&& work) {
        const std::lock_guard lock(mutex_);
        if (!model_) throw closed(call, "batch");
        return work(batch_);
    }
    // Lets go of its device memory, after the step of another thread.
    void close() {
        const std::lock_guard lock(mutex_);
        model_.reset();
    }
    std::int64_t slots() const noexcept { return slots_; }

   private:
    std::mutex mutex_;
    std::unique_ptr<llm::Model> model_;  // null: closed; batch_ is not touched then
    llm::Batch batch_;
    const std::int64_t slots_;
};

// A model with its one context, and what can be asked of it when it is closed, too. A new text ends the one
// under way.
struct Session {
    Session(std::shared_ptr<const llm::ModelWeights> weights, const llm::ModelOptions& options)
        : model(std::make_unique<llm::Model>(std::move(weights), options)),
          config(model->config()),
          device(model->device()),
          dtype(model->weights().dtype),
          cache_dtype(model->cache_dtype()),
          max_length(model->max_length()),
          parameters(model->weights().parameters) {}

    // With the mutex held. Throws Error (value) where the model is closed.
    llm::Model& open(const char* call) const {
        if (!model) throw closed(call, "model");
        return *model;
    }
    void close() {
        const std::lock_guard lock(mutex);
        for (const auto& each : batches) {
            if (const auto batch = each.lock()) batch->close();
        }
        batches.clear();
        model.reset();
    }

    std::mutex mutex;  // over what follows: a text may be read by another thread than the next one
    std::unique_ptr<llm::Model> model;            // null: closed
    std::vector<std::weak_ptr<PyBatch>> batches;  // that share its weights
    std::uint64_t text = 0;                       // counts them
    Tokens tokens;                                // that the context begins with, as far as it is known

    const llm::ModelConfig config;
    Device& device;
    const DType dtype, cache_dtype;
    const std::int64_t max_length, parameters;
};

struct PyModel {
    std::shared_ptr<Session> session;
};

struct TextOptions {
    llm::GenerationOptions generation;
    std::shared_ptr<Session> draft;  // of the strategy draft_model
    bool reuse = false;              // what the context holds of the prompt
};

// The tokens of one text, as an iterator.
class PyGeneration {
   public:
    PyGeneration(std::shared_ptr<Session> session, const Tokens& prompt, TextOptions options)
        : session_(std::move(session)),
          draft_(std::move(options.draft)),
          wants_logprobs_(options.generation.choice.logprobs) {
        if (draft_ == session_) {
            throw error(ErrorKind::value, {.call = "generate",
                                           .argument = "speculate",
                                           .expected = "another model for the drafts",
                                           .got = "the model itself"});
        }
        const Locked locked(*this);
        Session& s = *session_;
        llm::Model& model = s.open("generate");
        llm::Model* draft = draft_ ? &draft_->open("generate") : nullptr;
        llm::check_options("generate", model, prompt, options.generation);
        llm::refuse_capture("generate", model);
        text_ = ++s.text;
        if (draft_) {
            draft_text_ = ++draft_->text;
            draft_->tokens.clear();
            options.generation.speculation.draft = std::shared_ptr<llm::Model>(draft_, draft);
        }
        s.tokens.resize(options.reuse ? s.tokens.size() : 0);
        const auto same = std::mismatch(s.tokens.begin(), s.tokens.end(), prompt.begin(), prompt.end()).first;
        // The last token's logits are wanted, so it is always computed.
        const auto held = std::min({same - s.tokens.begin(), static_cast<std::ptrdiff_t>(prompt.size()) - 1,
                                    static_cast<std::ptrdiff_t>(model.length())});
        s.tokens.resize(static_cast<std::size_t>(held));
        model.truncate(held);
        generator_ = std::make_unique<llm::Generator>(model, prompt, options.generation);
        s.tokens = prompt;
    }

    std::optional<std::int32_t> next() {
        const Locked locked(*this);
        session_->open("generate");
        if (draft_) draft_->open("generate");
        if (session_->text != text_ || (draft_ && draft_->text != draft_text_)) {
            throw error(ErrorKind::value,
                        {.call = "generate",
                         .expected = "one text at a time from a model",
                         .got = "a text that another one has replaced",
                         .fix = "read a text to its end before the next, or load the model twice"});
        }
        const std::optional<std::int32_t> token = generator_->next();
        if (token) session_->tokens.push_back(*token);
        if (generator_->slid()) session_->tokens.clear();
        return token;
    }

    void cancel() noexcept { generator_->cancel(); }  // from any thread

    // Calls `look` with the generator while no other thread has it.
    template <class Look>
    auto look(Look&& look) const {
        const Locked locked(*this);
        return look(*generator_);
    }
    bool wants_logprobs() const noexcept { return wants_logprobs_; }

   private:
    struct Locked {
        explicit Locked(const PyGeneration& of) : session(of.session_->mutex, std::defer_lock) {
            if (of.draft_) {
                draft = std::unique_lock(of.draft_->mutex, std::defer_lock);
                std::lock(session, draft);
            } else {
                session.lock();
            }
        }
        std::unique_lock<std::mutex> session, draft;
    };

    std::shared_ptr<Session> session_, draft_;
    bool wants_logprobs_;
    std::uint64_t text_ = 0, draft_text_ = 0;
    std::unique_ptr<llm::Generator> generator_;
};

constexpr const char* kFinishReasons[] = {"none", "stop", "length", "context", "cancelled"};

nb::dict config_dict(const llm::ModelConfig& config) {
    nb::dict out;
    out["model_type"] = std::string(config.architecture->model_type);
    out["vocab_size"] = config.vocab_size;
    out["num_tokens"] = config.num_tokens;
    out["hidden_size"] = config.hidden_size;
    out["intermediate_size"] = config.intermediate_size;
    out["num_layers"] = config.num_layers;
    out["num_heads"] = config.num_heads;
    out["num_kv_heads"] = config.num_kv_heads;
    out["head_dim"] = config.head_dim;
    out["max_positions"] = config.max_positions;
    out["norm_eps"] = config.norm_eps;
    if (!config.ropes.empty()) out["rope_theta"] = config.ropes[0].theta;
    out["tie_word_embeddings"] = config.tie_word_embeddings;
    return out;
}

// What `look` finds at a text's generator, which another thread may be busy with.
template <class Look>
auto of_generator(const PyGeneration& text, Look&& look) {
    const Unlocked unlocked;
    return text.look(look);
}

nb::dict stats_dict(const llm::GenerationStats& stats) {
    nb::dict out;
    out["prompt_tokens"] = static_cast<double>(stats.prompt_tokens);
    out["reused_tokens"] = static_cast<double>(stats.reused_tokens);
    out["generated_tokens"] = static_cast<double>(stats.generated_tokens);
    out["prefill_seconds"] = stats.prefill_seconds;
    out["decode_seconds"] = stats.decode_seconds;
    out["tokens_per_second"] = stats.tokens_per_second();
    const llm::SpeculationStats& s = stats.speculation;
    if (s.passes + s.steps == 0) return out;
    out["passes"] = static_cast<double>(s.passes);
    out["plain_steps"] = static_cast<double>(s.steps);
    out["guessed_tokens"] = static_cast<double>(s.guessed);
    out["accepted_tokens"] = static_cast<double>(s.accepted);
    out["acceptance"] =
        s.guessed > 0 ? static_cast<double>(s.accepted) / static_cast<double>(s.guessed) : 0.0;
    out["tokens_per_pass"] =
        static_cast<double>(stats.generated_tokens - 1) / static_cast<double>(s.passes + s.steps);
    return out;
}

nb::object logprobs_of(const std::optional<llm::TokenLogprobs>& of) {
    if (!of) return nb::none();
    nb::list best;
    for (const auto& [token, logprob] : of->best) best.append(nb::make_tuple(token, logprob));
    return nb::make_tuple(of->chosen, best);
}

std::optional<QuantFormat> format_of(const std::optional<std::string>& name) {
    return name ? std::optional(ops::quant_format_from_name(*name)) : std::nullopt;
}

// `config_json`: the text of config.json; nothing for a GGUF file, which describes itself. `num_tokens`: ids
// that the tokenizer knows, where that is not in the file; 0: all are.
PyModel load(const PyTensorFile& source, const std::optional<std::string>& config_json, DTypeArg dtype,
             DeviceArg device, std::int64_t max_length, const std::optional<std::string>& quantize,
             DTypeArg cache_dtype, std::int64_t num_tokens, nb::object progress) {
    const DType wanted = read_dtype(dtype), cache = read_dtype_or(cache_dtype, wanted);
    Device& target = read_device(device);
    const Unlocked unlocked;
    const auto* gguf = dynamic_cast<const io::Gguf*>(source.file.get());
    const std::string what = source.file->path();
    const io::Json json = gguf != nullptr ? io::Json() : io::Json::parse(config_json.value(), what);
    llm::ModelConfig config =
        gguf != nullptr ? llm::ModelConfig::from_gguf(*gguf) : llm::ModelConfig::from_json(json, what);
    if (num_tokens > 0) config.num_tokens = std::min(config.vocab_size, num_tokens);
    const auto tensors = llm::open_source(*source.file, json, progress_to(progress));
    return {std::make_shared<Session>(
        llm::ModelWeights::load(target, config, *tensors, wanted, format_of(quantize)),
        llm::ModelOptions{.max_length = max_length, .cache_dtype = cache})};
}

PyModel from_arrays(const nb::dict& arrays, const std::string& config_json, DTypeArg dtype, DeviceArg device,
                    std::int64_t max_length, const std::optional<std::string>& quantize,
                    DTypeArg cache_dtype) {
    constexpr const char* kCall = "from_arrays";
    std::map<std::string, Array> named;
    for (const auto& [key, value] : arrays) {
        if (!nb::isinstance<nb::str>(key)) {
            throw error(ErrorKind::type, {.call = kCall,
                                          .argument = "arrays",
                                          .expected = "names as keys",
                                          .got = std::string(nb::inst_name(key).c_str())});
        }
        named.emplace(nb::cast<std::string>(key), read_array(kCall, "arrays", value));
    }
    const DType wanted = read_dtype(dtype), cache = read_dtype_or(cache_dtype, wanted);
    Device& target = read_device(device);
    const Unlocked unlocked;
    const llm::ModelConfig config = llm::ModelConfig::from_json(io::Json::parse(config_json, kCall), kCall);
    const llm::ArraySource source(std::move(named));
    return {std::make_shared<Session>(
        llm::ModelWeights::load(target, config, source, wanted, format_of(quantize)),
        llm::ModelOptions{.max_length = max_length, .cache_dtype = cache})};
}

Array score(PyModel& self, const Tokens& tokens) {
    const Unlocked unlocked;
    Session& session = *self.session;
    const std::lock_guard lock(session.mutex);
    llm::Model& model = session.open("score");
    llm::refuse_capture("score", model);
    ++session.text;
    session.tokens.clear();
    model.truncate(0);
    return model.score(tokens);
}

std::shared_ptr<PyBatch> make_batch(PyModel& self, std::int64_t slots) {
    const Unlocked unlocked;
    Session& session = *self.session;
    const std::lock_guard lock(session.mutex);
    const llm::Model& model = session.open("batch");
    llm::refuse_capture("batch", model);
    auto batch = std::make_shared<PyBatch>(model, slots);
    std::erase_if(session.batches, [](const auto& each) { return each.expired(); });
    session.batches.push_back(batch);
    return batch;
}

}  // namespace

void bind_llm(nb::module_& m) {
    nb::class_<llm::Choice>(m, "_Choice", "How the tokens of a text are chosen.")
        .def(
            "__init__",
            [](llm::Choice* self, double temperature, std::int64_t top_k, double top_p, double min_p,
               std::uint64_t seed, double repetition, double presence, double frequency,
               std::optional<std::int64_t> logprobs) {
                const llm::Choice choice{.sampling = {.temperature = temperature,
                                                      .top_k = top_k,
                                                      .top_p = top_p,
                                                      .min_p = min_p,
                                                      .seed = seed,
                                                      .repetition = repetition,
                                                      .presence = presence,
                                                      .frequency = frequency},
                                         .logprobs = logprobs};
                choice.validate();
                new (self) llm::Choice(choice);
            },
            nb::arg("temperature"), nb::arg("top_k"), nb::arg("top_p"), nb::arg("min_p"), nb::arg("seed"),
            nb::arg("repetition_penalty"), nb::arg("presence_penalty"), nb::arg("frequency_penalty"),
            nb::arg("logprobs").none());
    nb::class_<PyGeneration>(m, "_Generation", "The tokens of a text, one a step.")
        .def(
            "__iter__", [](nb::handle self) { return nb::borrow(self); },
            nb::sig("def __iter__(self) -> _Generation"))
        .def("__next__",
             [](PyGeneration& self) {
                 const std::optional<std::int32_t> token = [&] {
                     const Unlocked unlocked;
                     return self.next();
                 }();
                 if (!token) throw nb::stop_iteration();
                 return *token;
             })
        .def("cancel", [](PyGeneration& self) { self.cancel(); })
        .def_prop_ro(
            "logprobs",
            [](PyGeneration& self) {
                return logprobs_of(of_generator(self, [&](const llm::Generator& generator) {
                    return self.wants_logprobs() ? std::optional(generator.logprobs()) : std::nullopt;
                }));
            },
            nb::sig("def logprobs(self, /) -> tuple[float, list[tuple[int, float]]] | None"))
        .def_prop_ro(
            "finish_reason",
            [](PyGeneration& self) {
                return kFinishReasons[static_cast<int>(of_generator(
                    self, [](const llm::Generator& generator) { return generator.finish_reason(); }))];
            })
        .def_prop_ro(
            "stats",
            [](PyGeneration& self) {
                return stats_dict(
                    of_generator(self, [](const llm::Generator& generator) { return generator.stats(); }));
            },
            nb::sig("def stats(self, /) -> dict[str, float]"));
    nb::class_<PyBatch>(m, "_Batch", "Several texts of a model at once; see pygpukit.llm.")
        .def(
            "add",
            [](PyBatch& self, const Tokens& prompt, std::int64_t max_tokens, const Tokens& stop_tokens,
               const llm::Choice& choice, bool slide) {
                const Unlocked unlocked;
                const llm::GenerationOptions options{
                    .max_tokens = max_tokens, .stop_tokens = stop_tokens, .choice = choice, .slide = slide};
                return self.locked("add", [&](llm::Batch& batch) { return batch.add(prompt, options); });
            },
            nb::arg("prompt"), nb::arg("max_tokens"), nb::arg("stop_tokens"), nb::arg("choice"),
            nb::arg("slide"),
            nb::sig("def add(self, prompt: collections.abc.Sequence[int], max_tokens: int, stop_tokens: "
                    "collections.abc.Sequence[int], choice: _Choice, slide: bool) -> int"))
        .def(
            "cancel",
            [](PyBatch& self, std::int64_t text) {
                const Unlocked unlocked;
                return self.locked("cancel", [&](llm::Batch& batch) { return batch.cancel(text); });
            },
            nb::arg("text"))
        .def(
            "step",
            [](PyBatch& self) {
                const std::vector<llm::BatchToken> tokens = [&] {
                    const Unlocked unlocked;
                    return self.locked("step", [](llm::Batch& batch) { return batch.step(); });
                }();
                nb::list out;
                for (const llm::BatchToken& each : tokens) {
                    out.append(nb::make_tuple(
                        each.text, each.token >= 0 ? nb::cast(each.token) : nb::object(nb::none()),
                        kFinishReasons[static_cast<int>(each.finish_reason)], logprobs_of(each.logprobs)));
                }
                return out;
            },
            nb::sig(
                "def step(self) -> list[tuple[int, int | None, str, tuple[float, list[tuple[int, float]]] | "
                "None]]"))
        .def("close",
             [](PyBatch& self) {
                 const Unlocked unlocked;
                 self.close();
             })
        .def_prop_ro("slots", [](PyBatch& self) { return self.slots(); })
        .def_prop_ro("active",
                     [](PyBatch& self) {
                         const Unlocked unlocked;  // a step of another thread may be under way
                         return self.locked("active", [](llm::Batch& b) { return b.active(); });
                     })
        .def_prop_ro("waiting", [](PyBatch& self) {
            const Unlocked unlocked;
            return self.locked("waiting", [](llm::Batch& b) { return b.waiting(); });
        });
    nb::class_<PyModel>(m, "_Model", "A language model on a device; see pygpukit.llm.")
        .def_static("load", &load, nb::arg("file"), nb::arg("config_json").none(), nb::arg("dtype"),
                    nb::arg("device").none(), nb::arg("max_length"), nb::arg("quantize").none(),
                    nb::arg("cache_dtype").none(), nb::arg("num_tokens"), nb::arg("progress").none(),
                    nb::sig("def load(file: _TensorFile, config_json: str | None, dtype: DType | str | type, "
                            "device: Device | str | None, max_length: int, quantize: str | None, "
                            "cache_dtype: DType | str | type | None, num_tokens: int, progress: "
                            "collections.abc.Callable[[int, int], None] | None) -> _Model"))
        .def_static(
            "from_arrays", &from_arrays, nb::arg("arrays"), nb::arg("config_json"), nb::arg("dtype"),
            nb::arg("device").none(), nb::arg("max_length"), nb::arg("quantize").none(),
            nb::arg("cache_dtype").none(),
            nb::sig("def from_arrays(arrays: dict[str, Array], config_json: str, dtype: DType | str | "
                    "type, device: Device | str | None, max_length: int, quantize: str | None, "
                    "cache_dtype: DType | str | type | None) -> _Model"))
        .def_prop_ro(
            "config", [](PyModel& self) { return config_dict(self.session->config); },
            nb::sig("def config(self, /) -> dict[str, int | float | bool | str]"))
        .def_prop_ro(
            "dtype", [](PyModel& self) { return to_python(self.session->dtype); },
            nb::sig("def dtype(self, /) -> DType"))
        .def_prop_ro(
            "device", [](PyModel& self) -> Device& { return self.session->device; }, nb::rv_policy::reference)
        .def_prop_ro(
            "cache_dtype", [](PyModel& self) { return to_python(self.session->cache_dtype); },
            nb::sig("def cache_dtype(self, /) -> DType"))
        .def_prop_ro("cache_bytes",
                     [](PyModel& self) {
                         const Unlocked unlocked;
                         const std::lock_guard lock(self.session->mutex);
                         return self.session->model ? self.session->model->cache_bytes() : 0;
                     })
        .def_prop_ro("max_length", [](PyModel& self) { return self.session->max_length; })
        .def_prop_ro("num_parameters", [](PyModel& self) { return self.session->parameters; })
        .def_prop_ro("closed",
                     [](PyModel& self) {
                         const Unlocked unlocked;
                         const std::lock_guard lock(self.session->mutex);
                         return self.session->model == nullptr;
                     })
        .def("close",
             [](PyModel& self) {
                 const Unlocked unlocked;
                 self.session->close();
             })
        .def("batch", &make_batch, nb::arg("slots"))
        .def("score", &score, nb::arg("tokens"),
             nb::sig("def score(self, tokens: collections.abc.Sequence[int]) -> Array"))
        .def(
            "generate",
            [](PyModel& self, const Tokens& prompt, std::int64_t max_tokens, const Tokens& stop_tokens,
               const llm::Choice& choice, bool slide, bool reuse, const std::optional<std::string>& strategy,
               const PyModel* draft, std::int64_t guesses, std::int64_t layers) {
                const Unlocked unlocked;
                TextOptions options{.generation = {.max_tokens = max_tokens,
                                                   .stop_tokens = stop_tokens,
                                                   .choice = choice,
                                                   .speculation = {.guesses = guesses, .layers = layers},
                                                   .slide = slide},
                                    .draft = draft != nullptr ? draft->session : nullptr,
                                    .reuse = reuse};
                if (strategy) options.generation.speculation.strategy = llm::strategy_from_name(*strategy);
                return PyGeneration(self.session, prompt, std::move(options));
            },
            nb::arg("prompt"), nb::arg("max_tokens"), nb::arg("stop_tokens"), nb::arg("choice"),
            nb::arg("slide"), nb::arg("reuse"), nb::arg("strategy").none(), nb::arg("draft").none(),
            nb::arg("guesses"), nb::arg("layers"),
            nb::sig("def generate(self, prompt: collections.abc.Sequence[int], max_tokens: int, stop_tokens: "
                    "collections.abc.Sequence[int], choice: _Choice, slide: bool, reuse: bool, strategy: str "
                    "| None, "
                    "draft: _Model | None, guesses: int, layers: int) -> _Generation"));
}

}  // namespace gpk::python
