// Model files: names, metadata, tensors to arrays. The Python side is pygpukit/io.py.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "bindings/io.hpp"
#include "io/load.hpp"
#include "io/safetensors.hpp"

namespace gpk::python {

namespace {

nb::object to_python(const io::GgufArray& array);

template <class T>
nb::list numbers(const io::GgufArray& array, std::size_t stride) {
    nb::list out;
    for (std::size_t i = 0; i < array.count; ++i) {
        T value;
        std::memcpy(&value, array.numbers.data() + i * stride, sizeof(T));
        out.append(value);
    }
    return out;
}

nb::object to_python(const io::GgufArray& array) {
    using io::GgufType;
    switch (array.type) {
        case GgufType::uint8: return numbers<std::uint8_t>(array, 1);
        case GgufType::int8: return numbers<std::int8_t>(array, 1);
        case GgufType::uint16: return numbers<std::uint16_t>(array, 2);
        case GgufType::int16: return numbers<std::int16_t>(array, 2);
        case GgufType::uint32: return numbers<std::uint32_t>(array, 4);
        case GgufType::int32: return numbers<std::int32_t>(array, 4);
        case GgufType::float32: return numbers<float>(array, 4);
        case GgufType::uint64: return numbers<std::uint64_t>(array, 8);
        case GgufType::int64: return numbers<std::int64_t>(array, 8);
        case GgufType::float64: return numbers<double>(array, 8);
        case GgufType::bool_: {
            nb::list out;
            for (const std::byte each : array.numbers) out.append(each != std::byte{0});
            return out;
        }
        case GgufType::string: return nb::cast(array.strings);
        case GgufType::array: break;
    }
    nb::list out;
    for (const io::GgufArray& each : array.arrays) out.append(to_python(each));
    return out;
}

nb::object to_python(const io::GgufValue& value) {
    return std::visit(
        [](const auto& each) -> nb::object {
            if constexpr (std::is_same_v<std::decay_t<decltype(each)>,
                                         std::shared_ptr<const io::GgufArray>>) {
                return to_python(*each);
            } else {
                return nb::cast(each);
            }
        },
        value.value);
}

nb::dict gguf_metadata(const io::Gguf& file) {
    nb::dict out;
    for (const auto& [key, value] : file.metadata()) out[nb::str(key.data(), key.size())] = to_python(value);
    return out;
}

nb::dict safetensors_metadata(const io::SafeTensorsSet& set) {
    nb::dict out;
    for (const io::SafeTensors& file : set.files()) {
        for (const auto& [key, value] : file.metadata())
            out[nb::str(key.data(), key.size())] = nb::cast(value);
    }
    return out;
}

nb::tuple describe(const PyTensorFile& self, const std::string& name) {
    const io::TensorView& tensor = self.file->tensor(name);
    nb::list shape;
    for (std::int64_t extent : tensor.shape) shape.append(extent);
    return nb::make_tuple(nb::tuple(shape), python::to_python(tensor.dtype),
                          std::string(io::info(tensor.type).name), tensor.bytes.size());
}

Array load(const PyTensorFile& self, const std::string& name, DTypeArg dtype, DeviceArg device) {
    const io::TensorView& tensor = self.file->tensor(name);
    const DType wanted = read_dtype_or(dtype, tensor.dtype);
    Device& target = read_device(device);
    const Unlocked unlocked;  // reads the disk
    return io::load_tensor(target, tensor, wanted);
}

std::vector<Array> load_all(const PyTensorFile& self, const std::vector<std::string>& names, DTypeArg dtype,
                            DeviceArg device) {
    std::vector<const io::TensorView*> tensors;
    for (const std::string& name : names) tensors.push_back(&self.file->tensor(name));
    const std::optional<DType> wanted = dtype.is_none() ? std::nullopt : std::optional(read_dtype(dtype));
    Device& target = read_device(device);
    const Unlocked unlocked;
    return io::load_tensors(target, tensors, wanted, progress_to(nb::none()));
}

template <class File>
PyTensorFile open(const std::string& path) {
    const Unlocked unlocked;
    return {std::make_shared<File>(File::open(path))};
}

}  // namespace

io::LoadProgress progress_to(nb::handle call) {
    return [call](std::size_t done, std::size_t all) {
        const nb::gil_scoped_acquire locked;
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
        if (!call.is_none()) call(done, all);
    };
}

void bind_io(nb::module_& m) {
    nb::class_<PyTensorFile>(m, "_TensorFile", "A model file that is open; see pygpukit.io.")
        .def_static("open_gguf", &open<io::Gguf>, nb::arg("path"))
        .def_static("open_safetensors", &open<io::SafeTensorsSet>, nb::arg("path"))
        .def_prop_ro("path", [](const PyTensorFile& self) { return self.file->path(); })
        .def_prop_ro("names", [](const PyTensorFile& self) { return self.file->names(); })
        .def(
            "metadata",
            [](const PyTensorFile& self) {
                if (const auto* gguf = dynamic_cast<const io::Gguf*>(self.file.get()))
                    return gguf_metadata(*gguf);
                return safetensors_metadata(dynamic_cast<const io::SafeTensorsSet&>(*self.file));
            },
            nb::sig("def metadata(self) -> dict[str, object]"))
        .def("describe", &describe, nb::arg("name"), "(shape, dtype, the type as the file names it, bytes)",
             nb::sig("def describe(self, name: str) -> tuple[tuple[int, ...], DType, str, int]"))
        .def("load", &load, nb::arg("name"), nb::arg("dtype").none() = nb::none(),
             nb::arg("device").none() = nb::none(),
             nb::sig("def load(self, name: str, dtype: DType | str | type | None = None, "
                     "device: Device | str | None = None) -> Array"),
             "A read-only array with the tensor's elements.")
        .def("load_all", &load_all, nb::arg("names"), nb::arg("dtype").none() = nb::none(),
             nb::arg("device").none() = nb::none(),
             nb::sig(
                 "def load_all(self, names: collections.abc.Sequence[str], dtype: DType | str | type | None "
                 "= None, device: Device | str | None = None) -> list[Array]"),
             "Read-only arrays of several tensors, whose copies overlap. Floating and quantised ones become "
             "`dtype`.");
}

}  // namespace gpk::python
