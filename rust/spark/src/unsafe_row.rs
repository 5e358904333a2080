//! A text in one of Spark's binary rows.
//!
//! Owns: the row of which only fields of variable length are read.
//! Does not own: rows as columns (`fastchangelog_columns::spark_rows`, which has the layout).

/// A row. Every access is checked: a row that is too short has no value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnsafeRow<'a> {
    bytes: &'a [u8],
    fields: usize,
}

impl<'a> UnsafeRow<'a> {
    /// The row of so many fields in `bytes`; none if they are too short for it.
    pub(crate) fn new(bytes: &'a [u8], fields: usize) -> Option<Self> {
        let row = Self { bytes, fields };
        (bytes.len() >= row.bitset() + 8 * fields).then_some(row)
    }

    /// Bytes of the bits of null fields.
    fn bitset(&self) -> usize {
        self.fields.div_ceil(64) * 8
    }

    /// True for a null field.
    pub(crate) fn is_null(&self, field: usize) -> bool {
        debug_assert!(field < self.fields);
        self.bytes[field / 8] >> (field % 8) & 1 == 1
    }

    /// The eight bytes of a field: where its bytes are.
    fn word(&self, field: usize) -> [u8; 8] {
        debug_assert!(field < self.fields);
        let at = self.bitset() + 8 * field;
        self.bytes[at..at + 8].try_into().expect("eight bytes, whose presence `new` checked")
    }

    /// A field of variable length; none if it lies outside of the row.
    pub(crate) fn bytes(&self, field: usize) -> Option<&'a [u8]> {
        let word = u64::from_le_bytes(self.word(field));
        let (at, length) = ((word >> 32) as usize, (word & 0xFFFF_FFFF) as usize);
        self.bytes.get(at..at.checked_add(length)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read() {
        let mut bytes = vec![0b10, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend(7_u64.to_le_bytes());
        bytes.extend(0_u64.to_le_bytes());
        bytes.extend((32_u64 << 32 | 3).to_le_bytes());
        bytes.extend(b"abc\0\0\0\0\0");
        let row = UnsafeRow::new(&bytes, 3).unwrap();
        assert_eq!((row.is_null(0), row.is_null(1), row.is_null(2)), (false, true, false));
        assert_eq!(u64::from_le_bytes(row.word(0)), 7);
        assert_eq!(row.bytes(2), Some(&b"abc"[..]));
        assert!(UnsafeRow::new(&bytes[..31], 3).is_none());
        assert_eq!(UnsafeRow::new(&bytes[..34], 3).unwrap().bytes(2), None);
        assert!(UnsafeRow::new(&[], 1).is_none());
    }
}
