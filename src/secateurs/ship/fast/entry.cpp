// The call of a program from Python with one tensor in and one tensor out, for networks so small that the way to them
// takes longer than they do.
//
// torch describes and makes tensors in C by the exchange table of DLPack (torch 2.10 and later); the functions of Python
// come as a table of addresses. So neither has to be there when this file is compiled, and nothing of it is looked into
// but what DLPack lays open. Whatever is not a plain tensor of the right kind gets None: the caller then takes the long
// way, with its checks and messages.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

using Object = void;  // a Python object

struct Python {  // addresses of its functions, in the order of `_FUNCTIONS` in entry.py
    Object* (*type)(Object*);
    void (*drop)(Object*);
    Object* (*get)(Object*, Object*);
    Object* (*call)(Object*);
    Object* (*call_with)(Object*, Object*);
    long (*number)(Object*);
    void (*forget)();
    Object* (*no_memory)();
    void* (*pause)();
    void (*resume)(void*);
    void* (*inside)(Object*, const char*);
    void (*keep)(Object*);
    int (*holds)(Object*);
    long (*entries)(Object*);
    long (*size)(Object*);
    Object* (*item)(Object*, long);
    Object* (*call_all)(Object*, Object*, Object*);
};
Python python;

struct Names {  // what a call looks at
    Object *entry, *after, *before, *long_way;  // names of a module's attributes
    Object *after_all, *before_all;             // dictionaries: the hooks of all modules
    Object* none;
};
Names names;

// ---- DLPack, version 1 -----------------------------------------------------------------------------------------------

struct Tensor {
    void* data;
    int32_t device, index;
    int32_t dims;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t offset;
};

struct Managed {
    uint32_t major, minor;
    void* context;
    void (*free)(Managed*);
    uint64_t flags;
    Tensor tensor;
};

struct Exchange {
    uint32_t major, minor;
    void *older, *allocate, *own;
    int (*wrap)(Managed*, Object**);
    int (*look)(Object*, Tensor*);
};

constexpr int32_t PROCESSOR = 1;
constexpr uint8_t FLOAT = 2;
constexpr int MOST = 8;       // dimensions
constexpr size_t LINE = 64;   // bytes to which numbers are aligned
constexpr int64_t LONG = 50'000;  // products from which on other threads of Python may run meanwhile

// ---- one program -----------------------------------------------------------------------------------------------------

struct Entry {  // entry.py fills it in
    const Exchange* torch;
    Object *type, *requires_grad, *is_neg, *threads, *no;
    int (*run)(void*, const void*, void*, int64_t, int64_t);
    void* program;
    int64_t bits, products;      // of a number; of an image
    int64_t shared;              // threads at most that share one image
    int64_t dims, shape[MOST];   // of an input, without the batch
    int64_t dims_out, out[MOST];
};

// Whether the program can read this tensor where it stands.
bool fits(const Entry& e, const Tensor& t) {
    if (t.device != PROCESSOR || t.code != FLOAT || t.bits != e.bits || t.lanes != 1) return false;
    if (t.dims != e.dims + 1 || t.shape[0] < 1 || !t.data) return false;
    for (int64_t k = 0; k < e.dims; ++k)
        if (t.shape[k + 1] != e.shape[k]) return false;
    int64_t step = 1;
    for (int64_t k = e.dims; k >= 0 && t.strides; step *= t.shape[k], --k)
        if (t.shape[k] > 1 && t.strides[k] != step) return false;
    return true;
}

// Two flags that DLPack does not tell of: a gradient is wanted; all signs are to be turned.
bool plain(const Entry& e, Object* x) {
    Object* wanted = python.get(x, e.requires_grad);
    Object* turned = wanted == e.no ? python.call_with(e.is_neg, x) : nullptr;
    const bool both = wanted == e.no && turned == e.no;
    if (wanted) python.drop(wanted);
    if (turned) python.drop(turned);
    return both;
}

// The output: description and numbers in one piece of memory.
struct Fresh {
    Managed managed;
    int64_t shape[MOST + 1], strides[MOST + 1];
};
constexpr size_t HEAD = (sizeof(Fresh) + LINE - 1) / LINE * LINE;

void release(Managed* made) { std::free(made); }

Managed* fresh(const Entry& e, int64_t images) {
    int64_t step = 1;
    Fresh head{};
    for (int64_t k = e.dims_out; k >= 0; --k) {
        head.shape[k] = k ? e.out[k - 1] : images;
        head.strides[k] = step;
        step *= head.shape[k];
    }
    const size_t bytes = (HEAD + step * e.bits / 8 + LINE - 1) / LINE * LINE;
    auto* memory = static_cast<char*>(std::aligned_alloc(LINE, bytes));
    if (!memory) return nullptr;
    auto* made = new (memory) Fresh(head);
    made->managed = {1, e.torch->minor, nullptr, release, 0, {}};
    Tensor& t = made->managed.tensor;
    t.data = memory + HEAD, t.device = PROCESSOR, t.dims = int32_t(e.dims_out + 1);
    t.code = FLOAT, t.bits = uint8_t(e.bits), t.lanes = 1;
    t.shape = made->shape, t.strides = made->strides;
    return &made->managed;
}

int64_t threads(const Entry& e, int64_t images) {
    if (images == 1 && e.shared < 2) return 1;
    Object* number = python.call(e.threads);
    const int64_t found = number ? python.number(number) : 1;
    if (number) python.drop(number);
    return found;
}

// Runs it; long ones let other threads of Python go on.
bool ran(const Entry& e, const void* from, void* to, int64_t images) {
    const int64_t split = threads(e, images);
    void* paused = images * e.products < LONG ? nullptr : python.pause();
    const bool failed = e.run(e.program, from, to, images, split);
    if (paused) python.resume(paused);
    return !failed;
}

Object* answered(const Entry& e, const Tensor& x) {
    Managed* made = fresh(e, x.shape[0]);
    const char* from = static_cast<const char*>(x.data) + x.offset;
    if (!made || !ran(e, from, made->tensor.data, x.shape[0])) {
        if (made) release(made);
        return python.no_memory();
    }
    Object* y = nullptr;
    return e.torch->wrap(made, &y) ? nullptr : y;  // from here on `made` belongs to torch
}

// The output of one tensor; None says "take the long way".
Object* entered(Object* capsule, Object* x) {
    const auto& e = *static_cast<const Entry*>(python.inside(capsule, "secateurs.entry"));
    Object* type = python.type(x);
    python.drop(type);
    Tensor t;
    if (type == e.type) {
        if (e.torch->look(x, &t)) python.forget();
        else if (fits(e, t) && plain(e, x)) return answered(e, t);
    }
    python.keep(names.none);
    return names.none;
}

// An attribute that the module itself holds; null where it is missing.
Object* attribute(Object* module, Object* name) {
    Object* found = python.get(module, name);
    if (found) python.drop(found);
    else python.forget();
    return found;
}

// Whether anybody wants to see a call before or after it: then it goes through nn.Module.
bool hooked(Object* module) {
    Object *after = attribute(module, names.after), *before = attribute(module, names.before);
    return !after || !before || python.holds(after) || python.holds(before) || python.entries(names.after_all) ||
           python.entries(names.before_all);
}

}  // namespace

// A builtin of one tensor: `capsule` is its self.
extern "C" void* entry_one(void* capsule, void* x) { return entered(capsule, x); }

// `module(...)`: one tensor into a module with an entry, or else the long way.
extern "C" void* entry_call(void* module, void* given, void* named) {
    if (python.size(given) == 1 && !(named && python.entries(named)) && !hooked(module)) {
        Object* capsule = attribute(module, names.entry);
        if (capsule && capsule != names.none) {
            Object* y = entered(capsule, python.item(given, 0));
            if (y != names.none) return y;  // null is an error
            python.drop(y);
        }
    }
    Object* way = python.get(module, names.long_way);
    Object* y = way ? python.call_all(way, given, named) : nullptr;
    if (way) python.drop(way);
    return y;
}

extern "C" void entry_start(const Python* functions, const Names* looked_at) {
    python = *functions;
    names = *looked_at;
}
extern "C" int64_t entry_bytes() { return sizeof(Python) + sizeof(Names) + sizeof(Entry); }
