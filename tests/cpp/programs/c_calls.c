/* The C interface as a program in C uses it, well and badly, for sanitizers to look at: what is given lies in memory of
 * exactly its size, and every answer is checked.
 *
 *     c_calls FOLDER         the tiny bundle: int64 `ids` and `attention_mask` [batch, seq], float32 `hidden`, `pooled`
 */
#include <attnport/attnport.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ITEMS = 2, LENGTH = 5, INPUTS = 2, ROUNDS = 50 };

static void check_that(int is_so, const char* what, int line) {
    if (is_so) return;
    fprintf(stderr, "line %d: not so: %s; last error: %s\n", line, what, attnport_last_error());
    exit(4);
}
#define CHECK(what) check_that(what, #what, __LINE__)

/* Memory of `bytes` and no more, with a copy of `from`: what is read behind it is seen. */
static void* copied(const void* from, size_t bytes) {
    void* made = malloc(bytes);
    if (made == NULL) exit(5);
    return memcpy(made, from, bytes);
}

static const int64_t ids[ITEMS * LENGTH] = {3, 9, 49, 0, 7, 1, 2, 3, 0, 0};
static const int64_t mask[ITEMS * LENGTH] = {1, 1, 1, 1, 1, 1, 1, 1, 0, 0};
static const int64_t shape[2] = {ITEMS, LENGTH};

typedef struct {
    attnport_tensor* tensors; /* one more than the model takes */
    void* owned[4];
} feeds;

static feeds make_feeds(void) {
    feeds made;
    made.owned[0] = copied(ids, sizeof ids);
    made.owned[1] = copied(mask, sizeof mask);
    made.owned[2] = copied(shape, sizeof shape);
    const attnport_tensor all[INPUTS + 1] = {
        {"ids", ATTNPORT_INT64, ATTNPORT_CPU, 2, made.owned[2], made.owned[0]},
        {"attention_mask", ATTNPORT_INT64, ATTNPORT_CPU, 2, made.owned[2], made.owned[1]},
        {"more", ATTNPORT_INT64, ATTNPORT_CPU, 2, made.owned[2], made.owned[1]},
    };
    made.owned[3] = made.tensors = copied(all, sizeof all);
    return made;
}

static void free_feeds(const feeds* given) {
    for (size_t at = 0; at < sizeof given->owned / sizeof given->owned[0]; ++at) free(given->owned[at]);
}

/* The call fails with `status`, gives nothing and says `words`. */
typedef attnport_status run_function(attnport_model*, const attnport_tensor*, size_t, attnport_outputs**);

static void refuses(attnport_model* model, const attnport_tensor* tensors, size_t count, const char* words) {
    run_function* const functions[] = {attnport_run, attnport_run_device};
    for (size_t at = 0; at < 2; ++at) {
        attnport_outputs* outputs = (attnport_outputs*)(void*)&words; /* not NULL */
        CHECK(functions[at](model, tensors, count, &outputs) == ATTNPORT_BAD_USE);
        CHECK(outputs == NULL);
        if (strstr(attnport_last_error(), words) == NULL) {
            fprintf(stderr, "expected: %s\n", words);
            CHECK(!"the message has these words");
        }
    }
}

static void open_badly(const char* folder) {
    attnport_model* model = (attnport_model*)(void*)&folder;
    attnport_options options = {0};
    CHECK(attnport_open(NULL, NULL, &model) == ATTNPORT_BAD_USE);
    CHECK(model == NULL);
    CHECK(attnport_open(folder, NULL, NULL) == ATTNPORT_BAD_USE);
    CHECK(attnport_open("", NULL, &model) == ATTNPORT_BAD_USE);
    CHECK(attnport_open("/nowhere", NULL, &model) == ATTNPORT_BAD_USE);
    CHECK(strstr(attnport_last_error(), "/nowhere is no bundle") != NULL);
    const size_t sizes[] = {0, sizeof(size_t), sizeof options - 1, sizeof options + 1, SIZE_MAX};
    for (size_t at = 0; at < sizeof sizes / sizeof sizes[0]; ++at) {
        options.struct_bytes = sizes[at];
        /* A version that never was may be as short as its first member. */
        attnport_options* const given =
            sizes[at] < sizeof options ? copied(&options, sizeof(size_t)) : copied(&options, sizeof options);
        CHECK(attnport_open(folder, given, &model) == ATTNPORT_BAD_USE);
        free(given);
    }
    options.struct_bytes = sizeof options;
    options.threads = -1;
    CHECK(attnport_open(folder, &options, &model) == ATTNPORT_BAD_USE);
    options.threads = 0;
    options.public_key = "";
    CHECK(attnport_open(folder, &options, &model) == ATTNPORT_BAD_USE);
    options.public_key = NULL;
    options.form = "other";
    CHECK(attnport_open(folder, &options, &model) == ATTNPORT_BAD_USE);
    options.form = NULL;
    options.onnxruntime = "/nowhere.so";
    CHECK(attnport_open(folder, &options, &model) == ATTNPORT_RUNTIME_MISSING);
    CHECK(model == NULL);
}

/* Numbers that no enumerator has, as another language may fill them in. */
static void give_bad_enums(attnport_model* model) {
    const int numbers[] = {-1, 7, 8, 99, -2147483647 - 1, 2147483647};
    const feeds given = make_feeds();
    for (size_t at = 0; at < sizeof numbers / sizeof numbers[0]; ++at) {
        memcpy(&given.tensors[0].dtype, &numbers[at], sizeof numbers[at]);
        refuses(model, given.tensors, INPUTS, "input 'ids': got dtype number ");
        given.tensors[0].dtype = ATTNPORT_INT64;
        memcpy(&given.tensors[0].place, &numbers[at], sizeof numbers[at]);
        refuses(model, given.tensors, INPUTS, "input 'ids': got place number ");
        given.tensors[0].place = ATTNPORT_CPU;
    }
    for (int dtype = ATTNPORT_FLOAT32; dtype <= ATTNPORT_BFLOAT16; ++dtype) {
        if (dtype == ATTNPORT_INT64) continue;
        given.tensors[0].dtype = (attnport_dtype)dtype;
        refuses(model, given.tensors, INPUTS, "input 'ids': got dtype ");
    }
    given.tensors[0].dtype = ATTNPORT_INT64;
    given.tensors[0].place = ATTNPORT_CUDA;
    refuses(model, given.tensors, INPUTS, "input 'ids'");
    free_feeds(&given);
}

static void give_bad_shapes(attnport_model* model) {
    const feeds given = make_feeds();
    attnport_tensor* const one = &given.tensors[0];
    int64_t ones[64];
    for (size_t at = 0; at < 64; ++at) ones[at] = 1;
    const size_t ranks[] = {0, 1, 3, 64};
    for (size_t at = 0; at < sizeof ranks / sizeof ranks[0]; ++at) {
        int64_t* const sizes = copied(ones, ranks[at] * sizeof(int64_t));
        one->rank = ranks[at];
        one->shape = sizes;
        refuses(model, given.tensors, INPUTS, "input 'ids': got rank ");
        free(sizes);
    }
    one->shape = given.owned[2];
    const size_t garbage[] = {65, (size_t)1 << 62, SIZE_MAX};
    for (size_t at = 0; at < sizeof garbage / sizeof garbage[0]; ++at) {
        one->rank = garbage[at];
        refuses(model, given.tensors, INPUTS, "input 'ids': got rank ");
    }
    one->rank = 2;
    one->shape = NULL;
    refuses(model, given.tensors, INPUTS, "input 'ids': its shape is NULL.");
    const int64_t wrong[][2] = {
        {-1, LENGTH},   {ITEMS, INT64_MIN},          {0, LENGTH},        {ITEMS, 0},          {ITEMS, LENGTH + 1},
        {9, LENGTH},    {INT64_MAX, INT64_MAX},      {INT64_MAX, 1},     {1, INT64_MAX},      {INT64_MAX, 0},
        {1LL << 62, 4}, {INT64_MIN, INT64_MIN},      {1LL << 32, 1LL << 32},
    };
    for (size_t at = 0; at < sizeof wrong / sizeof wrong[0]; ++at) {
        one->shape = wrong[at];
        refuses(model, given.tensors, INPUTS, "");
    }
    one->shape = given.owned[2];
    one->data = NULL;
    refuses(model, given.tensors, INPUTS, "input 'ids': its data is NULL.");
    one->data = (const char*)given.owned[0] + 1;
    refuses(model, given.tensors, INPUTS, "not aligned");
    one->data = given.owned[0];
    one->name = NULL;
    refuses(model, given.tensors, INPUTS, "the name of a tensor: got NULL.");
    one->name = "";
    refuses(model, given.tensors, INPUTS, "input ''");
    one->name = "attention_mask";
    refuses(model, given.tensors, INPUTS, "it is there twice.");
    one->name = "ids";
    const size_t counts[] = {INPUTS + 1, INPUTS + 2, SIZE_MAX};
    for (size_t at = 0; at < sizeof counts / sizeof counts[0]; ++at) {
        refuses(model, given.tensors, counts[at], "input 'more': the model has no such input");
    }
    refuses(model, given.tensors, 1, "input 'attention_mask' is missing");
    refuses(model, NULL, 0, "is missing");
    refuses(model, NULL, INPUTS, "inputs: got NULL.");
    refuses(NULL, given.tensors, INPUTS, "model: got NULL.");
    CHECK(attnport_run(model, given.tensors, INPUTS, NULL) == ATTNPORT_BAD_USE);
    free_feeds(&given);
}

static void make_masks(attnport_model* model) {
    const int64_t lengths[] = {LENGTH, 3};
    int64_t* const given = copied(lengths, sizeof lengths);
    attnport_outputs* masks = NULL;
    CHECK(attnport_masks(model, given, ITEMS, 0, &masks) == ATTNPORT_OK);
    attnport_tensor found;
    CHECK(attnport_outputs_count(masks) == 1 && attnport_outputs_get(masks, 0, &found) == ATTNPORT_OK);
    CHECK(memcmp(found.data, mask, sizeof mask) == 0);
    attnport_outputs_free(masks);
    const size_t counts[] = {0, (size_t)1 << 62, SIZE_MAX};
    for (size_t at = 0; at < sizeof counts / sizeof counts[0]; ++at) {
        CHECK(attnport_masks(model, given, counts[at], 0, &masks) == ATTNPORT_BAD_USE && masks == NULL);
    }
    const int64_t sizes[] = {-1, 4, INT64_MIN, INT64_MAX};
    for (size_t at = 0; at < sizeof sizes / sizeof sizes[0]; ++at) {
        CHECK(attnport_masks(model, given, ITEMS, sizes[at], &masks) == ATTNPORT_BAD_USE && masks == NULL);
    }
    given[1] = INT64_MAX;
    CHECK(attnport_masks(model, given, ITEMS, 0, &masks) == ATTNPORT_BAD_USE && masks == NULL);
    given[1] = INT64_MIN;
    CHECK(attnport_masks(model, given, ITEMS, 0, &masks) == ATTNPORT_BAD_USE && masks == NULL);
    CHECK(attnport_masks(model, NULL, 1, 0, &masks) == ATTNPORT_BAD_USE);
    CHECK(attnport_masks(NULL, given, 1, 0, &masks) == ATTNPORT_BAD_USE);
    free(given);
}

static attnport_outputs* run(attnport_model* model) {
    const feeds given = make_feeds();
    attnport_outputs* outputs = NULL;
    CHECK(attnport_run(model, given.tensors, INPUTS, &outputs) == ATTNPORT_OK);
    free_feeds(&given);
    return outputs;
}

static attnport_tensor hidden_of(const attnport_outputs* outputs) {
    attnport_tensor found;
    CHECK(attnport_outputs_get(outputs, 0, &found) == ATTNPORT_OK);
    CHECK(strcmp(found.name, "hidden") == 0 && found.dtype == ATTNPORT_FLOAT32 && found.place == ATTNPORT_CPU);
    CHECK(found.rank == 3 && found.shape[0] == ITEMS && found.shape[1] == LENGTH && found.shape[2] == 8);
    return found;
}

typedef struct {
    attnport_model* model;
    const attnport_tensor* wanted;
    int number;
} shared;

static void* work(void* given) {
    const shared* const mine = given;
    char missing[32];
    snprintf(missing, sizeof missing, "/nowhere/%d", mine->number);
    CHECK(*attnport_last_error() == '\0');
    for (int round = 0; round < ROUNDS; ++round) {
        attnport_model* none = NULL;
        CHECK(attnport_open(missing, NULL, &none) == ATTNPORT_BAD_USE);
        attnport_outputs* const outputs = run(mine->model);
        CHECK(memcmp(hidden_of(outputs).data, mine->wanted->data, ITEMS * LENGTH * 8 * sizeof(float)) == 0);
        attnport_outputs_free(outputs);
        CHECK(strstr(attnport_last_error(), missing) != NULL);
    }
    return NULL;
}

static void share(attnport_model* model, const attnport_tensor* wanted) {
    pthread_t threads[2];
    shared given[2];
    for (int at = 0; at < 2; ++at) {
        given[at] = (shared){model, wanted, at};
        CHECK(pthread_create(&threads[at], NULL, work, &given[at]) == 0);
    }
    for (int at = 0; at < 2; ++at) CHECK(pthread_join(threads[at], NULL) == 0);
}

int main(int count, char** values) {
    if (count != 2) return 64;
    CHECK(attnport_abi_version() == ATTNPORT_ABI_VERSION);
    CHECK(*attnport_last_error() == '\0');
    open_badly(values[1]);

    attnport_options options = {.struct_bytes = sizeof options, .threads = 1};
    attnport_model* model = NULL;
    CHECK(attnport_open(values[1], &options, &model) == ATTNPORT_OK);
    CHECK(strcmp(attnport_form(model), "ort_cpu") == 0 && *attnport_provider(model) != '\0');
    give_bad_enums(model);
    give_bad_shapes(model);
    make_masks(model);
    attnport_outputs* const outputs = run(model);
    attnport_tensor hidden = hidden_of(outputs);
    share(model, &hidden);

    CHECK(attnport_outputs_count(outputs) == 2);
    CHECK(attnport_outputs_get(outputs, 2, &hidden) == ATTNPORT_BAD_USE);
    CHECK(attnport_outputs_get(outputs, SIZE_MAX, &hidden) == ATTNPORT_BAD_USE);
    CHECK(attnport_outputs_get(outputs, 0, NULL) == ATTNPORT_BAD_USE);
    CHECK(attnport_outputs_get(NULL, 0, &hidden) == ATTNPORT_BAD_USE);
    attnport_close(model);
    hidden = hidden_of(outputs); /* outputs outlive the model */
    CHECK(((const float*)hidden.data)[ITEMS * LENGTH * 8 - 1] == ((const float*)hidden.data)[ITEMS * LENGTH * 8 - 1]);
    attnport_outputs_free(outputs);

    for (int at = 0; at < 2; ++at) {
        attnport_close(NULL);
        attnport_outputs_free(NULL);
    }
    CHECK(attnport_outputs_count(NULL) == 0);
    CHECK(*attnport_form(NULL) == '\0' && *attnport_provider(NULL) == '\0');
    puts("every answer is as it should be");
    return 0;
}
