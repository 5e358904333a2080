//! The registers of HyperLogLog++.
//!
//! Owns: their bytes in a slot, the register of a hash, the greater ones of two slots.
//! Does not own: hashes (`spark_hash`), the estimate (`hyperloglog`).
//!
//! A slot is empty, or the precision p and the registers that are not zero: `number << 6 | value`, three bytes each, in
//! ascending order. When a quarter of the 2^p registers is set, it has all of them, six bits each. So the length tells
//! the form, and equal registers have equal bytes.

use fastchangelog_format::{Error, Result};
use std::cmp::Ordering;
use std::ops::RangeInclusive;

/// With fewer registers HyperLogLog++ is not defined; of more there are no figures for its estimate.
pub(super) const PRECISIONS: RangeInclusive<u8> = 4..=18;

const VALUE_BITS: u32 = 6;
/// Bytes of a register that is not zero, and of four registers among all.
const BYTES: usize = 3;

/// A register that is not zero: its number in front of its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Register(u32);

impl Register {
    fn new(number: u32, value: u32) -> Self {
        Self(number << VALUE_BITS | value)
    }

    /// The register that a hash sets.
    #[expect(clippy::cast_possible_truncation, reason = "a precision is at most 18 bits")]
    pub(super) fn of_hash(hash: u64, precision: u8) -> Self {
        let rest = hash << precision | 1 << (precision - 1);
        Self::new((hash >> (64 - precision)) as u32, rest.leading_zeros() + 1)
    }

    pub(super) fn number(self) -> usize {
        (self.0 >> VALUE_BITS) as usize
    }

    pub(super) fn value(self) -> u32 {
        self.0 & ((1 << VALUE_BITS) - 1)
    }
}

/// The registers of a slot that are not zero, in ascending order.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Registers {
    pub(super) precision: u8,
    set: Vec<Register>,
}

impl Registers {
    /// Those that are set by any number of registers.
    pub(super) fn of(precision: u8, mut set: Vec<Register>) -> Self {
        // Of one number the greatest value comes last.
        set.sort_unstable();
        set.dedup_by(|next, kept| {
            let same = next.number() == kept.number();
            if same {
                *kept = *next;
            }
            same
        });
        Self { precision, set }
    }

    /// Those of a slot; none of an empty one.
    pub(super) fn read(slot: &[u8], identity: &str) -> Result<Option<Self>> {
        let Some((precision, registers)) = slot.split_first() else {
            return Ok(None);
        };
        let read = PRECISIONS.contains(precision).then(|| Self::parse(*precision, registers)).flatten();
        let bad = || Error::corrupt(format_args!("an accumulator row of {identity}"), 0, "no registers");
        read.map(Some).ok_or_else(bad)
    }

    fn parse(precision: u8, bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.as_chunks::<BYTES>();
        let words = words.iter().map(|word| u32::from_le_bytes([word[0], word[1], word[2], 0]));
        let set: Vec<Register> = if bytes.len() == all(precision) {
            let values = words.flat_map(|word| (0..4).map(move |i| word >> (VALUE_BITS * i) & 63));
            (0..).zip(values).filter(|(_, value)| *value > 0).map(|(i, value)| Register::new(i, value)).collect()
        } else {
            words.map(Register).collect()
        };
        let ascends = set.is_sorted_by(|a, b| a.number() < b.number());
        let known = set.last().is_none_or(|last| last.number() < 1 << precision);
        (rest.is_empty() && ascends && known).then_some(Self { precision, set })
    }

    /// Those of a row of Spark's: words of eight bytes with ten registers each, and one word more.
    pub(super) fn of_words(bytes: &[u8], identity: &str) -> Result<Self> {
        let words = bytes.as_chunks::<8>().0;
        let precision = PRECISIONS.into_iter().find(|p| (1usize << p) / 10 + 1 == words.len());
        let precision = precision.ok_or_else(|| {
            Error::corrupt(format_args!("Spark's state of {identity}"), 0, format_args!("{} words", words.len()))
        })?;
        let values = words.iter().flat_map(|word| {
            let word = u64::from_le_bytes(*word);
            (0..10).map(move |i| (word >> (u64::from(VALUE_BITS) * i)) as u32 & 63)
        });
        let set = (0..1u32 << precision).zip(values).filter(|(_, value)| *value > 0);
        Ok(Self { precision, set: set.map(|(i, value)| Register::new(i, value)).collect() })
    }

    /// The bytes of a slot.
    pub(super) fn written(&self) -> Vec<u8> {
        let mut slot = vec![self.precision];
        if self.set.len() * BYTES < all(self.precision) {
            self.set.iter().for_each(|register| slot.extend_from_slice(&register.0.to_le_bytes()[..BYTES]));
            return slot;
        }
        slot.resize(1 + all(self.precision), 0);
        for register in &self.set {
            let (at, shift) = (1 + register.number() / 4 * BYTES, register.number() % 4 * VALUE_BITS as usize);
            let word = (register.value() << shift).to_le_bytes();
            slot[at..at + BYTES].iter_mut().zip(word).for_each(|(byte, bits)| *byte |= bits);
        }
        slot
    }

    /// The values of all registers, in order.
    pub(super) fn values(&self) -> impl Iterator<Item = u32> {
        let mut set = self.set.iter().peekable();
        (0..1usize << self.precision)
            .map(move |i| set.next_if(|register| register.number() == i).map_or(0, |register| register.value()))
    }

    /// The greater one of each register. An error where the precisions differ.
    pub(super) fn joined(self, other: Self, identity: &str) -> Result<Self> {
        if self.precision != other.precision {
            return Err(Error::invalid(format!(
                "{identity}: 2^{} registers cannot be joined with 2^{}: the relative deviation is another one",
                self.precision, other.precision
            )));
        }
        let (mut a, mut b) = (self.set.into_iter().peekable(), other.set.into_iter().peekable());
        let greater = std::iter::from_fn(|| {
            let (Some(x), Some(y)) = (a.peek(), b.peek()) else {
                return a.next().or_else(|| b.next());
            };
            match x.number().cmp(&y.number()) {
                Ordering::Less => a.next(),
                Ordering::Greater => b.next(),
                Ordering::Equal => a.next().max(b.next()),
            }
        });
        Ok(Self { precision: self.precision, set: greater.collect() })
    }
}

/// The bytes of all registers.
fn all(precision: u8) -> usize {
    (1 << precision) / 4 * BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn registers_are_read_as_they_were_written(
            precision in 4u8..=9,
            hashes in prop::collection::vec(any::<u64>(), 0..300),
            cut in any::<prop::sample::Index>(),
        ) {
            let registers = |hashes: &[u64]| {
                Registers::of(precision, hashes.iter().map(|hash| Register::of_hash(*hash, precision)).collect())
            };
            let all = registers(&hashes);
            let slot = all.written();
            let read = Registers::read(&slot, "r").unwrap();
            prop_assert_eq!(read.as_ref(), Some(&all));
            let mut model = vec![0; 1 << precision];
            for hash in &hashes {
                let register = Register::of_hash(*hash, precision);
                let value = &mut model[register.number()];
                *value = register.value().max(*value);
            }
            prop_assert_eq!(all.values().collect::<Vec<_>>(), model);
            let (left, right) = hashes.split_at(cut.index(hashes.len() + 1));
            let joined = registers(left).joined(registers(right), "r").unwrap();
            prop_assert_eq!(joined.written(), slot);
        }

        #[test]
        fn bytes_that_are_no_registers_are_corrupt_or_registers(slot in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(Some(registers)) = Registers::read(&slot, "r") {
                let _ = (registers.values().count(), registers.written());
            }
        }
    }

    #[test]
    fn few_registers_take_few_bytes() {
        let registers = |n: u64| Registers::of(9, (0..n).map(|i| Register::of_hash(i << 55, 9)).collect());
        assert_eq!(registers(2).written().len(), 7);
        assert_eq!(registers(127).written().len(), 382);
        assert_eq!(registers(128).written().len(), 385);
        assert_eq!(registers(512).written().len(), 385);
    }

    #[test]
    fn registers_of_two_precisions_are_not_joined() {
        let of = |precision| Registers::of(precision, vec![Register::of_hash(1, precision)]);
        assert!(of(4).joined(of(5), "r").unwrap_err().to_string().contains("2^4"));
    }
}
