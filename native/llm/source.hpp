// Where a model's tensors come from: a file, or arrays on a device.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "array/array.hpp"
#include "io/load.hpp"
#include "ops/quantize.hpp"

namespace gpk::llm {

class WeightSource {
   public:
    virtual ~WeightSource() = default;

    const std::string& what() const noexcept { return what_; }  // begins messages
    virtual std::vector<std::string> names() const = 0;
    virtual bool contains(const std::string& name) const = 0;
    virtual Dims shape(const std::string& name) const = 0;  // throws Error (file) where there is none
    // Throws Error (type) for a tensor that is not of numbers that `dtype` can stand for.
    virtual void check_convertible(const std::string& name, DType dtype) const = 0;
    // `to` has the tensor's shape and no gaps. Row i of it becomes the tensor's row rows[i], where given.
    // Work on the array waits for what is still under way when this returns.
    virtual void load_into(const Array& to, const std::string& name,
                           std::span<const std::int64_t> rows) const = 0;
    // A matrix that is stored as codes: these, in the same order of rows; else nothing. What it reads must
    // stay open meanwhile.
    virtual std::optional<ops::CodedMatrix> coded(const std::string&, std::span<const std::int64_t>,
                                                  DType) const {
        return std::nullopt;
    }
    virtual void wait() const {}  // until all is there; throws what failed

   protected:
    explicit WeightSource(std::string what) : what_(std::move(what)) {}

   private:
    std::string what_;
};

// `file` must outlive this.
class FileSource : public WeightSource {
   public:
    explicit FileSource(const io::TensorFile& file, io::LoadProgress progress = nullptr);
    std::vector<std::string> names() const override { return file_.names(); }
    bool contains(const std::string& name) const override { return file_.find(name) != nullptr; }
    Dims shape(const std::string& name) const override { return file_.tensor(name).shape; }
    void check_convertible(const std::string& name, DType dtype) const override;
    void load_into(const Array& to, const std::string& name,
                   std::span<const std::int64_t> rows) const override;
    std::optional<ops::CodedMatrix> coded(const std::string& name, std::span<const std::int64_t> rows,
                                          DType dtype) const override;

    void wait() const override;

   private:
    void note(std::size_t bytes) const;

    const io::TensorFile& file_;
    const io::LoadProgress progress_;
    std::size_t all_bytes_ = 0;
    mutable std::size_t done_bytes_ = 0;
    mutable io::PendingLoads pending_;
};

class ArraySource : public WeightSource {
   public:
    explicit ArraySource(std::map<std::string, Array> arrays)
        : WeightSource("arrays"), arrays_(std::move(arrays)) {}
    std::vector<std::string> names() const override;
    bool contains(const std::string& name) const override { return arrays_.contains(name); }
    Dims shape(const std::string& name) const override { return at(name).shape(); }
    void check_convertible(const std::string& name, DType dtype) const override;
    void load_into(const Array& to, const std::string& name,
                   std::span<const std::int64_t> rows) const override;

   private:
    const Array& at(const std::string& name) const;
    std::map<std::string, Array> arrays_;
};

}  // namespace gpk::llm
