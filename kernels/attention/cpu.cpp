// Linear attention on a CPU, from what the macro of its kind says, or from features; see attention.h.

#include "attention.h"

#if defined(LOGARITHMS)
constexpr attention::Kind KIND = attention::Kind::Logarithms;
#elif defined(ELU)
constexpr attention::Kind KIND = attention::Kind::Elu;
#elif defined(RELU)
constexpr attention::Kind KIND = attention::Kind::Relu;
#else
constexpr attention::Kind KIND = attention::Kind::Given;
#endif

#ifdef FORWARD
extern "C" void longmix_forward(const REAL* query, const REAL* key, const REAL* value, const int64_t* lengths,
                                const int64_t* document_ids, REAL* output, int64_t batch, int64_t heads,
                                int64_t positions, int64_t features, int64_t width, int64_t causal, int64_t threads) {
    attention::Shape shape{batch, heads, positions, features, width, causal != 0};
    attention::Rows<REAL> rows{query, key, value, nullptr, output, nullptr, nullptr, nullptr};
    attention::run<attention::Forward<REAL, KIND>>(shape, rows, lengths, document_ids, threads);
}
#endif

#ifdef BACKWARD
extern "C" void longmix_backward(const REAL* gradient, const REAL* query, const REAL* key, const REAL* value,
                                 const int64_t* lengths, const int64_t* document_ids, REAL* of_query, REAL* of_key,
                                 REAL* of_value, int64_t batch, int64_t heads, int64_t positions, int64_t features,
                                 int64_t width, int64_t causal, int64_t threads) {
    attention::Shape shape{batch, heads, positions, features, width, causal != 0};
    attention::Rows<REAL> rows{query, key, value, gradient, nullptr, of_query, of_key, of_value};
    attention::run<attention::Backward<REAL, KIND>>(shape, rows, lengths, document_ids, threads);
}
#endif
