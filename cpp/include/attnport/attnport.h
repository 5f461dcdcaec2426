/* The C interface of a bundle's reader: for other languages to bind. Nothing is thrown across it.
 *
 * Every function that can fail returns an attnport_status, which is also the exit code of the command line;
 * attnport_last_error() then has the message, of the calling thread.
 */
#ifndef ATTNPORT_H
#define ATTNPORT_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define ATTNPORT_C_API __attribute__((visibility("default")))
#else
#define ATTNPORT_C_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface; attnport_abi_version() is that of the library that was loaded. */
#define ATTNPORT_ABI_VERSION 1

typedef enum attnport_status {
    ATTNPORT_OK = 0,
    ATTNPORT_BUG = 1,             /* an error that the library did not expect */
    ATTNPORT_BAD_USE = 2,         /* no bundle, an unknown form, inputs that do not fit the model, too little memory */
    ATTNPORT_RUNTIME_MISSING = 3, /* no runtime that the bundle takes */
    ATTNPORT_NUMBERS_OFF = 4,     /* the model computes something else here */
    ATTNPORT_INTEGRITY = 6        /* a file is not the one that was bundled, or the signature is not right */
} attnport_status;

typedef enum attnport_dtype {
    ATTNPORT_FLOAT32 = 0,
    ATTNPORT_FLOAT16 = 1,
    ATTNPORT_FLOAT64 = 2,
    ATTNPORT_INT32 = 3,
    ATTNPORT_INT64 = 4,
    ATTNPORT_BOOL = 5,
    ATTNPORT_BFLOAT16 = 6
} attnport_dtype;

typedef enum attnport_place { ATTNPORT_CPU = 0, ATTNPORT_CUDA = 1 } attnport_place;

/* A dense tensor in C order. What it points to belongs to whoever filled it in. */
typedef struct attnport_tensor {
    const char* name;
    attnport_dtype dtype;
    attnport_place place;
    size_t rank;
    const int64_t* shape;
    const void* data;
} attnport_tensor;

/* An application's own tokenizer: writes the ids of a text (UTF-8), with the special tokens around it, to `ids`, at most
 * `longest` of them, and returns how many; below 0: it failed. It cuts a text that is too long, as only it knows the
 * special tokens that stay behind it. May be called from every thread that embeds. */
typedef int64_t (*attnport_tokenize)(void* user, const char* text, int64_t* ids, int64_t longest);

/* How a bundle is opened; all zero is a good choice but for `struct_bytes`, which is sizeof(attnport_options): a
 * library with another version of the interface refuses it. */
typedef struct attnport_options {
    size_t struct_bytes;
    const char* form;        /* NULL: the first of the bundle's order that opens */
    int threads;             /* 0: the runtime's own choice */
    int trust_files;         /* not 0: files are not compared with their digests, but for engines */
    const char* public_key;  /* a PEM file: open only what is signed with it; NULL: not checked */
    const char* cache;       /* NULL: $ATTNPORT_CACHE, else the user's own */
    const char* onnxruntime; /* its library; NULL: $ATTNPORT_ONNXRUNTIME, else libonnxruntime.so.1 */
    attnport_tokenize tokenize; /* NULL: the bundle's tokenizer, which has to be BERT's */
    void* tokenize_user;        /* what it is given */
} attnport_options;

typedef struct attnport_model attnport_model;
typedef struct attnport_outputs attnport_outputs;

ATTNPORT_C_API int attnport_abi_version(void);

/* Checks the bundle in a folder and opens its model. `options` may be NULL. On success *model is to be closed. */
ATTNPORT_C_API attnport_status attnport_open(const char* folder, const attnport_options* options,
                                             attnport_model** model);

/* Closes a model; NULL is fine. No call of it may be running, and none may follow: closing it a second time is as
 * undefined as a second free(). Outputs stay valid. */
ATTNPORT_C_API void attnport_close(attnport_model* model);

/* Runs the model on inputs in CPU memory, in the contract's dtypes. May be called from several threads at once. On
 * success *outputs is to be freed. */
ATTNPORT_C_API attnport_status attnport_run(attnport_model* model, const attnport_tensor* inputs, size_t count,
                                            attnport_outputs** outputs);

/* As attnport_run, for inputs where the model computes, in the file's dtypes; outputs stay on its device. */
ATTNPORT_C_API attnport_status attnport_run_device(attnport_model* model, const attnport_tensor* inputs, size_t count,
                                                   attnport_outputs** outputs);

/* Runs any number of items in batches of like length, of at most `tokens` tokens each, padding included (0: 1024);
 * outputs are in the order of the items. */
ATTNPORT_C_API attnport_status attnport_map(attnport_model* model, const attnport_tensor* inputs, size_t count,
                                            int64_t tokens, attnport_outputs** outputs);

/* The vectors of any number of texts (UTF-8), one output [texts, width], with the prompt of that name before each. NULL:
 * the model's default one, if it has one; "": none. See attnport_map. */
ATTNPORT_C_API attnport_status attnport_embed(attnport_model* model, const char* const* texts, size_t count,
                                              const char* prompt, int64_t tokens, attnport_outputs** outputs);

/* The scores of any number of texts, or, unless `others` is NULL, of the pairs of each and the one of `others` at its
 * place: one output [texts] or [texts, classes]. With the prompt before the first text of each; see attnport_embed. */
ATTNPORT_C_API attnport_status attnport_predict(attnport_model* model, const char* const* texts,
                                                const char* const* others, size_t count, const char* prompt,
                                                int64_t tokens, attnport_outputs** outputs);

/* Every input that says what is padding, for items of `lengths` padded on the right to `size` (0: the longest). */
ATTNPORT_C_API attnport_status attnport_masks(attnport_model* model, const int64_t* lengths, size_t count, int64_t size,
                                              attnport_outputs** masks);

/* The outputs of a call, in the contract's order. What `tensor` then points to lives as long as the outputs, which are
 * freed once; NULL has none, and is fine to free. */
ATTNPORT_C_API size_t attnport_outputs_count(const attnport_outputs* outputs);
ATTNPORT_C_API attnport_status attnport_outputs_get(const attnport_outputs* outputs, size_t index,
                                                    attnport_tensor* tensor);
ATTNPORT_C_API void attnport_outputs_free(attnport_outputs* outputs);

/* What is open: texts that live as long as the model. */
ATTNPORT_C_API const char* attnport_form(const attnport_model* model);
ATTNPORT_C_API const char* attnport_provider(const attnport_model* model);

/* The message of the calling thread's last failure; "" when there was none. It lives until the next call. */
ATTNPORT_C_API const char* attnport_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
