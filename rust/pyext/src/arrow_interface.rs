//! Arrow data from Python and back, through Arrow's C data interface.
//!
//! Owns: importing arrays and batches, and the check that their shape is that of their
//! type: counts of buffers and children, lengths, alignment of offsets; the export of arrays in binary form as text.
//! Does not own: the check of what is in the buffers (`fastchangelog_columns::import`), what the values mean.
//!
//! The interface gives no buffer lengths. pyarrow knows them: its own cheap check runs first.

use crate::detached::{calling, detached, raise};
use arrow_array::cast::AsArray;
use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi_and_data_type};
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_data::ArrayData;
use arrow_schema::{DataType, Schema, SchemaRef};
use fastchangelog_columns::import::{DEPTH, import, import_text, import_type};
use fastchangelog_format::{Error, Result};
use fastchangelog_store::address_space::check_memory;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use pyo3_arrow::{PyArray, PyRecordBatch, PySchema};
use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const SCHEMA: &CStr = c"arrow_schema";
const ARRAY: &CStr = c"arrow_array";
/// No column is longer: its validity alone would be larger than an address space.
const LONGEST: usize = 1 << 48;

/// Columns of fewer bytes are taken without a look at the memory that is left.
const LARGE: usize = 1 << 20;

/// An array of which only the shape was checked.
pub(crate) struct ForeignArray {
    declared: DataType,
    /// Strings are in their binary form.
    data: ArrayData,
}

impl ForeignArray {
    fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if object.get_type().module()? == "pyarrow.lib" {
            let checked = object.call_method0("validate");
            checked.map_err(|e| raise(object.py(), &malformed(&e.value(object.py()))))?;
        }
        let Ok(made) = object.call_method0("__arrow_c_array__") else {
            return Err(PyTypeError::new_err(format!("this is not an Arrow array, but {}", object.get_type().name()?)));
        };
        let (schema, array) = made.extract::<(Bound<'_, PyCapsule>, Bound<'_, PyCapsule>)>()?;
        let schema = schema.pointer_checked(Some(SCHEMA))?.cast::<FFI_ArrowSchema>();
        let array = array.pointer_checked(Some(ARRAY))?.cast::<FFI_ArrowArray>();
        // SAFETY: a capsule of this name holds such a struct, and lives in this function. The array is moved out of it,
        // as the interface has it.
        let (schema, array) = unsafe { (schema.as_ref(), FFI_ArrowArray::from_raw(array.as_ptr())) };
        let taken = catch_unwind(AssertUnwindSafe(|| Self::take(schema, array)));
        taken.unwrap_or_else(|_| Err(malformed(&"its parts are missing"))).map_err(|e| raise(object.py(), &e))
    }

    fn take(schema: &FFI_ArrowSchema, array: FFI_ArrowArray) -> Result<Self> {
        if array.is_released() {
            return Err(malformed(&"it was taken before"));
        }
        check_depth(schema, DEPTH)?;
        let declared = DataType::try_from(schema)?;
        let data_type = import_type(&declared)?;
        check_shape(&array, &data_type)?;
        // SAFETY: the parts of the array are those of the type, and no length overflows. That each buffer is as long as
        // the lengths say is the promise of the interface.
        let data = unsafe { from_ffi_and_data_type(array, data_type) }?;
        Ok(Self { declared, data })
    }

    /// What is done with a column takes about as much memory as the column.
    fn check_memory(&self) -> Result<()> {
        let bytes = self.data.get_buffer_memory_size();
        if bytes < LARGE { Ok(()) } else { check_memory(bytes as u64, "a column of values") }
    }

    /// The type that it came as.
    pub(crate) fn declared(&self) -> &DataType {
        &self.declared
    }

    /// The column, checked; strings in their binary form.
    pub(crate) fn binary(&self) -> Result<ArrayRef> {
        self.check_memory()?;
        import(&self.data)
    }

    /// The column, checked, which must be a `T`; `name` is what it was passed as.
    pub(crate) fn as_type<T: Array + Clone + 'static>(&self, name: &str) -> Result<T> {
        self.check_memory()?;
        let column = import(&self.data)?;
        match column.as_any().downcast_ref::<T>() {
            Some(array) if column.data_type() == &self.declared => Ok(array.clone()),
            _ => Err(Error::invalid(format!("`{name}` is an array of type {}", self.declared))
                .with_remedy("pass one of the type that the signature names")),
        }
    }

    /// The column, checked; strings as text, which must be UTF-8.
    pub(crate) fn text(&self) -> Result<ArrayRef> {
        self.check_memory()?;
        import_text(&self.data, &self.declared)
    }
}

impl<'py> FromPyObject<'_, 'py> for ForeignArray {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        calling(object.py(), || Self::of(&object))
    }
}

/// A checked column; strings as text.
pub(crate) fn text(py: Python<'_>, array: &ForeignArray) -> PyResult<ArrayRef> {
    detached(py, |_| array.text())
}

/// The array as one of pyarrow.
pub(crate) fn to_pyarrow(py: Python<'_>, array: ArrayRef) -> PyResult<Bound<'_, PyAny>> {
    calling(py, || Ok(PyArray::from_array_ref(array).to_pyarrow(py)?.unbind().into_bound(py)))
}

/// The types that a state is declared with, one field each.
pub(crate) fn types<const N: usize>(schema: &Schema) -> Result<[&DataType; N]> {
    let types: Vec<_> = schema.fields().iter().map(|field| field.data_type()).collect();
    types.try_into().map_err(|_| Error::internal(format!("{N} types are needed")))
}

/// The batch as one of pyarrow.
pub(crate) fn batch_to_pyarrow(py: Python<'_>, batch: RecordBatch) -> PyResult<Bound<'_, PyAny>> {
    calling(py, || PyRecordBatch::new(batch).into_pyarrow(py))
}

/// The schema as one of pyarrow.
pub(crate) fn schema_to_pyarrow(py: Python<'_>, schema: SchemaRef) -> PyResult<Bound<'_, PyAny>> {
    calling(py, || PySchema::new(schema).into_pyarrow(py))
}

/// The array, whose strings are in binary form, as one of pyarrow of type `declared`. Nothing is copied, and no byte is
/// looked at: Spark's strings need not be UTF-8.
pub(crate) fn to_pyarrow_as<'py>(
    py: Python<'py>,
    array: &ArrayRef,
    declared: &DataType,
) -> PyResult<Bound<'py, PyAny>> {
    let export = || {
        if array.data_type() != &import_type(declared)? {
            return Err(Error::internal(format!("an array of type {} for {declared}", array.data_type())));
        }
        Ok((FFI_ArrowSchema::try_from(declared)?, FFI_ArrowArray::new(&array.to_data())))
    };
    let (schema, array) = export().map_err(|e| raise(py, &e))?;
    let schema = PyCapsule::new_with_value(py, schema, SCHEMA)?;
    let array = PyCapsule::new_with_value(py, array, ARRAY)?;
    calling(py, || py.import("pyarrow")?.getattr("Array")?.call_method1("_import_from_c_capsule", (schema, array)))
}

/// Record batches of which only the shape was checked.
pub(crate) struct ForeignBatches(Vec<ForeignArray>);

impl ForeignBatches {
    /// The batches with their declared schemas, one by one, checked; strings in their binary form.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Result<(Schema, RecordBatch)>> {
        self.0.iter().map(batch)
    }
}

impl<'py> FromPyObject<'_, 'py> for ForeignBatches {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        calling(object.py(), || {
            if object.hasattr("__arrow_c_array__")? || !object.hasattr("__arrow_c_stream__")? {
                return Ok(Self(vec![ForeignArray::of(&object)?]));
            }
            let readers = object.py().import("pyarrow")?.getattr("RecordBatchReader")?;
            let batches = readers.call_method1("from_stream", (object,))?.try_iter()?;
            Ok(Self(batches.map(|batch| ForeignArray::of(&batch?)).collect::<PyResult<_>>()?))
        })
    }
}

fn batch(of: &ForeignArray) -> Result<(Schema, RecordBatch)> {
    let DataType::Struct(declared) = &of.declared else {
        return Err(Error::invalid(format!("this is not a record batch, but an array of type {}", of.declared)));
    };
    let rows = import(&of.data)?;
    let rows = rows.as_struct();
    if rows.null_count() > 0 {
        return Err(malformed(&"a record batch has no null rows"));
    }
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    let schema = Arc::new(Schema::new(rows.fields().clone()));
    let batch = RecordBatch::try_new_with_options(schema, rows.columns().to_vec(), &options)?;
    Ok((Schema::new(declared.clone()), batch))
}

fn malformed(why: &dyn std::fmt::Display) -> Error {
    Error::invalid(format!("an Arrow array is malformed: {why}")).with_remedy("rebuild it from its values")
}

/// Arrow reads nested types by recursion.
fn check_depth(schema: &FFI_ArrowSchema, depth: usize) -> Result<()> {
    let depth = depth.checked_sub(1).ok_or_else(|| malformed(&"it is nested too deeply"))?;
    schema.children().chain(schema.dictionary()).try_for_each(|child| check_depth(child, depth))
}

fn check_shape(array: &FFI_ArrowArray, data_type: &DataType) -> Result<()> {
    // Negative lengths are read as huge ones.
    if array.len() > LONGEST || array.offset() > LONGEST {
        return Err(malformed(&"its length is negative or too large"));
    }
    let children: Vec<&DataType> = match data_type {
        DataType::List(f) | DataType::LargeList(f) | DataType::FixedSizeList(f, _) | DataType::Map(f, _) => {
            vec![f.data_type()]
        }
        DataType::Struct(fields) => fields.iter().map(|field| field.data_type()).collect(),
        _ => vec![],
    };
    let buffers = array.num_buffers();
    let fits = match data_type {
        DataType::Null => true,
        DataType::Struct(_) | DataType::FixedSizeList(..) => buffers == 1,
        DataType::Binary | DataType::LargeBinary => buffers == 3,
        DataType::BinaryView => buffers >= 3,
        _ => buffers == 2,
    };
    if !fits || array.num_children() != children.len() {
        return Err(malformed(&format_args!(
            "{buffers} buffers and {} children are not those of {data_type}",
            array.num_children()
        )));
    }
    match data_type {
        DataType::Binary | DataType::List(_) | DataType::Map(..) => check_aligned::<i32>(array)?,
        DataType::LargeBinary | DataType::LargeList(_) => check_aligned::<i64>(array)?,
        DataType::BinaryView => check_views(array)?,
        DataType::Dictionary(_, values) => {
            let values_of = array.dictionary().ok_or_else(|| malformed(&"its dictionary is missing"))?;
            check_shape(values_of, values)?;
        }
        _ => {}
    }
    children.into_iter().enumerate().try_for_each(|(i, child)| check_shape(array.child(i), child))
}

/// The last offset is read to learn the length of the values.
fn check_aligned<T>(array: &FFI_ArrowArray) -> Result<()> {
    if array.buffer(1).align_offset(align_of::<T>()) != 0 {
        return Err(malformed(&"its offsets are not aligned"));
    }
    Ok(())
}

/// Views name the lengths of their buffers in a last one.
fn check_views(array: &FFI_ArrowArray) -> Result<()> {
    let count = array.num_buffers() - 3;
    if count == 0 {
        return Ok(());
    }
    #[expect(clippy::cast_ptr_alignment, reason = "the next line looks at it")]
    let lengths = array.buffer(array.num_buffers() - 1).cast::<i64>();
    if lengths.is_null() || !lengths.is_aligned() {
        return Err(malformed(&"the lengths of its buffers are missing"));
    }
    // SAFETY: the interface promises one length for each of these buffers.
    let lengths = unsafe { std::slice::from_raw_parts(lengths, count) };
    if lengths.iter().any(|length| usize::try_from(*length).map_or(true, |length| length > LONGEST)) {
        return Err(malformed(&"the length of one of its buffers is negative or too large"));
    }
    Ok(())
}
