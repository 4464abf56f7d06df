// NumPy arrays as C++ sees them: contiguous memory of one element type, through Python's buffer protocol.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace reflectdrive {

// A C-contiguous array for the duration of a call. Constant element types are read, from a copy where the array is not
// contiguous; others are written.
template <class Element>
class Array {
 public:
  Array(PyObject* object, const char* name, int axes) {
    constexpr bool is_read = std::is_const_v<Element>;
    const int flags = PyBUF_FORMAT | (is_read ? PyBUF_STRIDES : PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
    if (PyObject_GetBuffer(object, &view_, flags) != 0) {
      PyErr_Clear();
      throw std::invalid_argument(std::string(name) +
                                  (is_read ? " is no array" : " is no contiguous array to write to"));
    }
    data_ = static_cast<Element*>(view_.buf);
    if (view_.ndim != axes || view_.itemsize != sizeof(Element) || !holds(view_.format)) {
      const std::string found = std::to_string(view_.ndim) + " axes of '" + view_.format + "'";
      PyBuffer_Release(&view_);
      throw std::invalid_argument(std::string(name) + " has " + found + ", expected " + std::to_string(axes) +
                                  " axes of another type or number");
    }
    if constexpr (is_read)
      if (!PyBuffer_IsContiguous(&view_, 'C')) {
        copy_.resize(view_.len);
        PyBuffer_ToContiguous(copy_.data(), &view_, view_.len, 'C');
        data_ = reinterpret_cast<Element*>(copy_.data());
      }
  }
  ~Array() { PyBuffer_Release(&view_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  Element* data() const { return data_; }
  Py_ssize_t size(int axis) const { return view_.shape[axis]; }

  // Refuses another length of an axis, by the array's name.
  const Array& of(int axis, Py_ssize_t expected, const char* name) const {
    if (size(axis) != expected)
      throw std::invalid_argument(std::string(name) + " has length " + std::to_string(size(axis)) + " on axis " +
                                  std::to_string(axis) + ", expected " + std::to_string(expected));
    return *this;
  }

 private:
  static bool holds(const char* format) {
    using Plain = std::remove_const_t<Element>;
    const char code = format[0];
    if constexpr (std::is_same_v<Plain, double>) return code == 'd';
    if constexpr (std::is_same_v<Plain, float>) return code == 'f';
    if constexpr (std::is_same_v<Plain, bool>) return code == '?';
    return std::string("lLqQ").find(code) != std::string::npos;  // 8 bytes, by its size
  }

  Py_buffer view_;
  Element* data_;
  std::vector<char> copy_;
};

}  // namespace reflectdrive
