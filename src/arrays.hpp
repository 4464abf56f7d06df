// NumPy arrays as kernels take them: contiguous memory of one element type, through Python's buffer protocol.
//
// nanobind's own arrays are not used: they cost a call of `__dlpack__` for each array, as much as a small kernel, and
// their errors list types instead of naming the array.
#pragma once

#include <nanobind/nanobind.h>

#include <climits>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace reflectdrive {

inline constexpr Py_ssize_t kAny = -1;  // any length of an axis

// A C-contiguous array for the duration of a call, of an object that may be something else: `check` comes first.
// Constant element types are read, others are written.
template <class Element>
class Array {
 public:
  static constexpr bool kIsRead = std::is_const_v<Element>;

  Array() = default;
  Array(const Py_buffer* view, Element* data) : view_(view), data_(data) {}

  Element* data() const { return data_; }
  int size(int axis) const { return static_cast<int>(view_->shape[axis]); }

  // Refuses, by the array's name, another type of object or element, or another shape.
  const Array& check(const char* name, std::initializer_list<Py_ssize_t> shape) const {
    if (!fits(shape)) throw std::invalid_argument(std::string(name) + ' ' + fault(shape));
    return *this;
  }

 private:
  static constexpr char kType = std::is_same_v<std::remove_const_t<Element>, double>  ? 'd'
                                : std::is_same_v<std::remove_const_t<Element>, float> ? 'f'
                                : std::is_same_v<std::remove_const_t<Element>, bool>  ? '?'
                                                                                      : 'l';

  bool has_type() const {
    const char type = view_->format[0];
    return view_->itemsize == sizeof(Element) && (kType == 'l' ? std::strchr("lLqQ", type) != nullptr : type == kType);
  }

  bool fits(std::initializer_list<Py_ssize_t> shape) const {
    if (data_ == nullptr || view_->ndim != static_cast<int>(shape.size()) || !has_type()) return false;
    const Py_ssize_t* length = view_->shape;
    for (const Py_ssize_t expected : shape) {
      if (*length > INT_MAX || (expected != kAny && *length != expected)) return false;
      ++length;
    }
    return true;
  }

  std::string fault(std::initializer_list<Py_ssize_t> shape) const {
    if (data_ == nullptr) return kIsRead ? "is no array" : "is no contiguous array to write to";
    if (view_->ndim != static_cast<int>(shape.size()) || !has_type())
      return "has " + std::to_string(view_->ndim) + " axes of '" + view_->format + "', expected " +
             std::to_string(shape.size()) + " of '" + kType + "'";
    int axis = 0;
    for (const Py_ssize_t expected : shape) {
      const Py_ssize_t length = view_->shape[axis];
      if (length > INT_MAX || (expected != kAny && length != expected))
        return "has length " + std::to_string(length) + " on axis " + std::to_string(axis) + ", expected " +
               (expected == kAny ? "at most " + std::to_string(INT_MAX) : std::to_string(expected));
      ++axis;
    }
    return "fits";
  }

  const Py_buffer* view_ = nullptr;
  Element* data_ = nullptr;  // none where the object is no such array
};

}  // namespace reflectdrive

// Takes any object and holds its buffer during the call, so that `check` can name the array. What is read is copied
// where it is not contiguous.
template <class Element>
struct nanobind::detail::type_caster<reflectdrive::Array<Element>> {
  NB_TYPE_CASTER(reflectdrive::Array<Element>, const_name("numpy.ndarray"))

  type_caster() { view_.obj = nullptr; }
  type_caster(const type_caster&) = delete;
  ~type_caster() { PyBuffer_Release(&view_); }

  bool from_python(handle source, uint32_t, cleanup_list*) noexcept {
    constexpr int kLayout = Value::kIsRead ? PyBUF_STRIDES : PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE;
    if (PyObject_GetBuffer(source.ptr(), &view_, PyBUF_FORMAT | kLayout) != 0) {
      PyErr_Clear();
      return true;
    }
    void* data = view_.buf;
    if constexpr (Value::kIsRead)
      if (!PyBuffer_IsContiguous(&view_, 'C')) {
        copy_.reset(new (std::nothrow) char[static_cast<std::size_t>(view_.len)]);
        data = copy_.get();
        if (data == nullptr || PyBuffer_ToContiguous(data, &view_, view_.len, 'C') != 0) {
          PyErr_Clear();
          return true;
        }
      }
    value = {&view_, static_cast<Element*>(data)};
    return true;
  }

 private:
  Py_buffer view_;
  std::unique_ptr<char[]> copy_;
};
