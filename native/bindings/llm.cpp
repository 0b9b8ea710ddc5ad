// Language models: configured and streamed from Python (pygpukit/llm), computed here.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <mutex>

#include "bindings/io.hpp"
#include "llm/batch.hpp"
#include "llm/checkpoint.hpp"

namespace gpk::python {

namespace {

using Tokens = std::vector<std::int32_t>;

// A model with its one context. Each text begins anew; a new one ends the one under way.
struct Session {
    Session(std::shared_ptr<const llm::ModelWeights> weights, const llm::ModelOptions& options)
        : model(std::move(weights), options) {}

    std::mutex mutex;  // over the model: a text may be read by another thread than the next one
    llm::Model model;
    std::uint64_t text = 0;  // counts them
};

struct PyModel {
    std::shared_ptr<Session> session;
};

// The tokens of one text, as an iterator.
class PyGeneration {
   public:
    PyGeneration(std::shared_ptr<Session> session, const Tokens& prompt,
                 const llm::GenerationOptions& options)
        : session_(std::move(session)) {
        const std::lock_guard lock(session_->mutex);
        text_ = ++session_->text;
        session_->model.truncate(0);
        generator_ = std::make_unique<llm::Generator>(session_->model, prompt, options);
    }

    std::optional<std::int32_t> next() {
        const std::lock_guard lock(session_->mutex);
        if (session_->text != text_) {
            throw error(ErrorKind::value,
                        {.call = "generate",
                         .expected = "one text at a time from a model",
                         .got = "a text that another one has replaced",
                         .fix = "read a text to its end before the next, or load the model twice"});
        }
        return generator_->next();
    }

    const llm::Generator& generator() const { return *generator_; }

   private:
    std::shared_ptr<Session> session_;
    std::uint64_t text_ = 0;
    std::unique_ptr<llm::Generator> generator_;
};

// A batch with slots of its own; the weights are the model's.
class PyBatch {
   public:
    PyBatch(const llm::Model& model, std::int64_t slots)
        : model_(model.shared_weights(),
                 {.max_length = model.max_length(), .slots = slots, .cache_dtype = model.cache_dtype()}),
          batch_(model_) {}

    // Calls `work` with the batch while no other thread has it.
    template <class Work>
    auto locked(Work&& work) {
        const std::lock_guard lock(mutex_);
        return work(batch_);
    }
    std::int64_t slots() const { return model_.slots(); }

   private:
    std::mutex mutex_;
    llm::Model model_;
    llm::Batch batch_;
};

constexpr const char* kFinishReasons[] = {"none", "stop", "length", "context"};

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

std::optional<QuantFormat> format_of(const std::optional<std::string>& name) {
    return name ? std::optional(ops::quant_format_from_name(*name)) : std::nullopt;
}

// `config_json`: the text of config.json; nothing for a GGUF file, which describes itself.
PyModel load(const PyTensorFile& source, const std::optional<std::string>& config_json, DTypeArg dtype,
             DeviceArg device, std::int64_t max_length, const std::optional<std::string>& quantize,
             DTypeArg cache_dtype) {
    const DType wanted = read_dtype(dtype), cache = read_dtype_or(cache_dtype, wanted);
    Device& target = read_device(device);
    const Unlocked unlocked;
    const auto* gguf = dynamic_cast<const io::Gguf*>(source.file.get());
    const std::string what = source.file->path();
    const io::Json json = gguf != nullptr ? io::Json() : io::Json::parse(config_json.value(), what);
    const llm::ModelConfig config =
        gguf != nullptr ? llm::ModelConfig::from_gguf(*gguf) : llm::ModelConfig::from_json(json, what);
    const auto tensors = llm::open_source(*source.file, json);
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
    ++session.text;
    session.model.truncate(0);
    return session.model.score(tokens);
}

}  // namespace

void bind_llm(nb::module_& m) {
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
        .def_prop_ro("finish_reason",
                     [](PyGeneration& self) {
                         return kFinishReasons[static_cast<int>(self.generator().finish_reason())];
                     })
        .def_prop_ro(
            "stats",
            [](PyGeneration& self) {
                const llm::GenerationStats& stats = self.generator().stats();
                nb::dict out;
                out["prompt_tokens"] = static_cast<double>(stats.prompt_tokens);
                out["generated_tokens"] = static_cast<double>(stats.generated_tokens);
                out["prefill_seconds"] = stats.prefill_seconds;
                out["decode_seconds"] = stats.decode_seconds;
                out["tokens_per_second"] = stats.tokens_per_second();
                return out;
            },
            nb::sig("def stats(self, /) -> dict[str, float]"));
    nb::class_<PyBatch>(m, "_Batch", "Several texts of a model at once; see pygpukit.llm.")
        .def(
            "add",
            [](PyBatch& self, const Tokens& prompt, std::int64_t max_tokens, const Tokens& stop_tokens) {
                const Unlocked unlocked;
                return self.locked([&](llm::Batch& batch) {
                    return batch.add(prompt, {.max_tokens = max_tokens, .stop_tokens = stop_tokens});
                });
            },
            nb::arg("prompt"), nb::arg("max_tokens"), nb::arg("stop_tokens"),
            nb::sig("def add(self, prompt: collections.abc.Sequence[int], max_tokens: int, stop_tokens: "
                    "collections.abc.Sequence[int]) -> int"))
        .def(
            "cancel",
            [](PyBatch& self, std::int64_t text) {
                const Unlocked unlocked;
                return self.locked([&](llm::Batch& batch) { return batch.cancel(text); });
            },
            nb::arg("text"))
        .def(
            "step",
            [](PyBatch& self) {
                const std::vector<llm::BatchToken> tokens = [&] {
                    const Unlocked unlocked;
                    return self.locked([](llm::Batch& batch) { return batch.step(); });
                }();
                nb::list out;
                for (const llm::BatchToken& each : tokens) {
                    out.append(nb::make_tuple(each.text,
                                              each.token >= 0 ? nb::cast(each.token) : nb::object(nb::none()),
                                              kFinishReasons[static_cast<int>(each.finish_reason)]));
                }
                return out;
            },
            nb::sig("def step(self) -> list[tuple[int, int | None, str]]"))
        .def_prop_ro("slots", [](PyBatch& self) { return self.slots(); })
        .def_prop_ro("active",
                     [](PyBatch& self) { return self.locked([](llm::Batch& b) { return b.active(); }); })
        .def_prop_ro("waiting",
                     [](PyBatch& self) { return self.locked([](llm::Batch& b) { return b.waiting(); }); });
    nb::class_<PyModel>(m, "_Model", "A language model on a device; see pygpukit.llm.")
        .def_static("load", &load, nb::arg("file"), nb::arg("config_json").none(), nb::arg("dtype"),
                    nb::arg("device").none(), nb::arg("max_length"), nb::arg("quantize").none(),
                    nb::arg("cache_dtype").none(),
                    nb::sig("def load(file: _TensorFile, config_json: str | None, dtype: DType | str | type, "
                            "device: Device | str | None, max_length: int, quantize: str | None, "
                            "cache_dtype: DType | str | type | None) -> _Model"))
        .def_static(
            "from_arrays", &from_arrays, nb::arg("arrays"), nb::arg("config_json"), nb::arg("dtype"),
            nb::arg("device").none(), nb::arg("max_length"), nb::arg("quantize").none(),
            nb::arg("cache_dtype").none(),
            nb::sig("def from_arrays(arrays: dict[str, Array], config_json: str, dtype: DType | str | "
                    "type, device: Device | str | None, max_length: int, quantize: str | None, "
                    "cache_dtype: DType | str | type | None) -> _Model"))
        .def_prop_ro(
            "config", [](PyModel& self) { return config_dict(self.session->model.config()); },
            nb::sig("def config(self, /) -> dict[str, int | float | bool | str]"))
        .def_prop_ro(
            "dtype", [](PyModel& self) { return to_python(self.session->model.weights().dtype); },
            nb::sig("def dtype(self, /) -> DType"))
        .def_prop_ro(
            "device", [](PyModel& self) -> Device& { return self.session->model.device(); },
            nb::rv_policy::reference)
        .def_prop_ro(
            "cache_dtype", [](PyModel& self) { return to_python(self.session->model.cache_dtype()); },
            nb::sig("def cache_dtype(self, /) -> DType"))
        .def_prop_ro("cache_bytes", [](PyModel& self) { return self.session->model.cache_bytes(); })
        .def_prop_ro("max_length", [](PyModel& self) { return self.session->model.max_length(); })
        .def_prop_ro("num_parameters", [](PyModel& self) { return self.session->model.weights().parameters; })
        .def(
            "batch",
            [](PyModel& self, std::int64_t slots) {
                const Unlocked unlocked;
                return std::make_unique<PyBatch>(self.session->model, slots);
            },
            nb::arg("slots"))
        .def("score", &score, nb::arg("tokens"),
             nb::sig("def score(self, tokens: collections.abc.Sequence[int]) -> Array"))
        .def(
            "generate",
            [](PyModel& self, const Tokens& prompt, std::int64_t max_tokens, const Tokens& stop_tokens,
               double temperature, std::int64_t top_k, double top_p, std::uint64_t seed, double min_p,
               double repetition, double presence, double frequency) {
                const Unlocked unlocked;
                const llm::GenerationOptions options{.max_tokens = max_tokens,
                                                     .stop_tokens = stop_tokens,
                                                     .sampling = {.temperature = temperature,
                                                                  .top_k = top_k,
                                                                  .top_p = top_p,
                                                                  .min_p = min_p,
                                                                  .seed = seed,
                                                                  .repetition = repetition,
                                                                  .presence = presence,
                                                                  .frequency = frequency}};
                return PyGeneration(self.session, prompt, options);
            },
            nb::arg("prompt"), nb::arg("max_tokens"), nb::arg("stop_tokens"), nb::arg("temperature"),
            nb::arg("top_k"), nb::arg("top_p"), nb::arg("seed"), nb::arg("min_p"),
            nb::arg("repetition_penalty"), nb::arg("presence_penalty"), nb::arg("frequency_penalty"),
            nb::sig("def generate(self, prompt: collections.abc.Sequence[int], max_tokens: int, stop_tokens: "
                    "collections.abc.Sequence[int], temperature: float, top_k: int, top_p: float, seed: int, "
                    "min_p: float, repetition_penalty: float, presence_penalty: float, frequency_penalty: "
                    "float) -> _Generation"));
}

}  // namespace gpk::python
