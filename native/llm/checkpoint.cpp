#include "llm/checkpoint.hpp"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "io/dequantize.hpp"
#include "llm/checkpoint_layouts.hpp"
#include "ops/elementwise.hpp"

namespace gpk::llm {

namespace {

// Tensors that say no more than others do, or what belongs to activations, which stay as they are here.
constexpr std::string_view kBeside[] = {".input_scale", ".input_zero_point", ".weight_shape"};

}  // namespace

CheckpointSource::CheckpointSource(const io::TensorFile& file, const io::Json& quantization,
                                   io::LoadProgress progress)
    : FileSource(file, std::move(progress)) {
    const CheckpointLayout& layout = checkpoint_layout(file.path(), quantization);
    ModuleTensors::Used used;
    for (const io::TensorView& tensor : file.tensors()) {
        if (!tensor.name.ends_with(layout.codes)) continue;
        const std::string module = tensor.name.substr(0, tensor.name.size() - layout.codes.size());
        ModuleTensors::Used asked_for;
        const ModuleTensors tensors(file, module, asked_for);
        std::optional<ops::CodedMatrix> matrix = layout.read(tensors, quantization);
        if (!matrix) continue;
        used.merge(asked_for);
        matrices_.emplace(module + ".weight", std::move(*matrix));
        used.insert(tensor.name);
        for (const std::string_view beside : kBeside) used.insert(str(module, beside));
        // Some writers give every matrix a bias, of zeros where the model has none.
        const io::TensorView* bias = file.find(module + ".bias");
        if (bias == nullptr) continue;
        const std::vector<float> values = io::read_float32(*bias);
        if (std::ranges::all_of(values, [](float value) { return value == 0; })) used.insert(bias->name);
    }
    for (const auto& [name, matrix] : matrices_) names_.push_back(name);
    for (const std::string& name : file.names()) {
        if (!used.contains(name)) names_.push_back(name);
    }
}

CheckpointSource::~CheckpointSource() = default;

const ops::CodedMatrix* CheckpointSource::find(const std::string& name) const {
    const auto found = matrices_.find(name);
    return found == matrices_.end() ? nullptr : &found->second;
}

std::vector<std::string> CheckpointSource::names() const { return names_; }

bool CheckpointSource::contains(const std::string& name) const {
    return find(name) != nullptr || FileSource::contains(name);
}

Dims CheckpointSource::shape(const std::string& name) const {
    if (const ops::CodedMatrix* matrix = find(name)) return {matrix->n, matrix->k};
    return FileSource::shape(name);
}

void CheckpointSource::check_convertible(const std::string& name, DType dtype) const {
    if (find(name) == nullptr) FileSource::check_convertible(name, dtype);
}

void CheckpointSource::load_into(const Array& to, const std::string& name,
                                 std::span<const std::int64_t> rows) const {
    if (find(name) == nullptr) return FileSource::load_into(to, name, rows);
    const ops::QuantizedWeight weight = ops::pack_codes(to.device(), *coded(name, rows, to.dtype()));
    ops::assign(to, ops::dequantize(weight, to.dtype()));
}

std::optional<ops::CodedMatrix> CheckpointSource::coded(const std::string& name,
                                                        std::span<const std::int64_t> rows,
                                                        DType dtype) const {
    const ops::CodedMatrix* stored = find(name);
    if (stored == nullptr) return FileSource::coded(name, rows, dtype);
    ops::CodedMatrix matrix = *stored;
    matrix.dtype = dtype;
    if (rows.empty()) return matrix;
    matrix.read = [read = stored->read, order = std::vector(rows.begin(), rows.end())](
                      std::int64_t row, std::uint8_t* codes, float* scales, float* offsets) {
        read(order[static_cast<std::size_t>(row)], codes, scales, offsets);
    };
    return matrix;
}

std::unique_ptr<WeightSource> open_source(const io::TensorFile& file, const io::Json& config,
                                          io::LoadProgress progress) {
    const io::Json* quantization = config.find("quantization_config");
    if (quantization == nullptr || quantization->is_null())
        return std::make_unique<FileSource>(file, std::move(progress));
    return std::make_unique<CheckpointSource>(file, *quantization, std::move(progress));
}

}  // namespace gpk::llm
