#include "kernels/embedding/embedding.hpp"

#include <cstring>

#include "kernels/host.hpp"

namespace gpk {
extern const Image image_embedding;
}

namespace gpk::kernels {

namespace {

void embedding_host(const EmbeddingParams& p) {
    parallel_for(p.count, 1 + (1 << 16) / (p.row_bytes + 1), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t id = p.ids_are_int64 ? static_cast<const std::int64_t*>(p.ids)[i]
                                                    : static_cast<const std::int32_t*>(p.ids)[i];
            char* to = static_cast<char*>(p.out) + i * p.row_bytes;
            const auto bytes = static_cast<std::size_t>(p.row_bytes);
            if (id >= 0 && id < p.rows) {
                std::memcpy(to, static_cast<const char*>(p.table) + id * p.row_bytes, bytes);
            } else {
                std::memset(to, 0, bytes);
            }
        }
    });
}

const Kernel kKernel(KernelDef{.name = "embedding",
                               .image = &image_embedding,
                               .twin = twin<EmbeddingParams, embedding_host>,
                               .waits_for_predecessor = true});

}  // namespace

const Kernel& embedding() { return kKernel; }

}  // namespace gpk::kernels
