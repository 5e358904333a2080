//! `bit_and`, `bit_or`, `bit_xor`.
//!
//! Owns: bitwise operations over integers of each width.

use crate::aggregate::accumulator::{Accumulator, Bound, Call, Layout};
use crate::aggregate::fold::Fold;
use crate::aggregate::prim::{Native, has_bit, set_bit};
use crate::aggregate::results::RowRange;
use crate::aggregate::row::{Other, RowMut, Slots};
use arrow_array::ArrayRef;
use arrow_schema::DataType;
use fastchangelog_format::Result;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::ops::{BitAnd, BitOr, BitXor};

/// A bitwise operation. It is a type, so that loops over rows are compiled for it.
trait Operation: Debug + Send + Sync + 'static {
    /// The function's name.
    const NAME: &'static str;

    fn of<N: BitAnd<Output = N> + BitOr<Output = N> + BitXor<Output = N>>(a: N, b: N) -> N;
}

macro_rules! operation {
    ($function:ident, $name:ident, $operator:tt) => {
        #[derive(Debug)]
        struct $name;

        impl Operation for $name {
            const NAME: &'static str = stringify!($function);

            #[inline]
            fn of<N: BitAnd<Output = N> + BitOr<Output = N> + BitXor<Output = N>>(a: N, b: N) -> N {
                a $operator b
            }
        }

        pub(super) fn $function(call: &Call<'_>) -> Option<Bound> {
            bind::<$name>(call.types[0])
        }
    };
}

operation!(bit_and, And, &);
operation!(bit_or, Or, |);
operation!(bit_xor, Xor, ^);

fn bind<O: Operation>(argument: &DataType) -> Option<Bound> {
    let result = argument.clone();
    let bound = match argument {
        DataType::Int8 => Bound::new(Bits::<i8, O>(PhantomData), result).in_any_order(),
        DataType::Int16 => Bound::new(Bits::<i16, O>(PhantomData), result).in_any_order(),
        DataType::Int32 => Bound::new(Bits::<i32, O>(PhantomData), result).in_any_order(),
        DataType::Int64 => Bound::new(Bits::<i64, O>(PhantomData), result).in_any_order(),
        _ => return None,
    };
    Some(bound.kept_as(O::NAME))
}

/// An integer of the argument's type; bit 0: not null.
#[derive(Debug)]
struct Bits<N, O>(PhantomData<(N, O)>);

impl<N, O> Accumulator for Bits<N, O>
where
    N: Native + BitAnd<Output = N> + BitOr<Output = N> + BitXor<Output = N>,
    O: Operation,
{
    fn layout(&self) -> Layout {
        Layout { bits: 1, bytes: size_of::<N>(), vars: 0, ..Layout::default() }
    }

    fn update(&self, slots: &Slots, arguments: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let (values, bit, at) = (N::values(arguments[0])?, slots.bit, slots.at);
        fold.each(|i, row| combine::<N, O>(row, values[i], bit, at));
        Ok(())
    }

    fn merge(&self, slots: &Slots, mine: &mut RowMut<'_>, other: Other<'_>) -> Result<()> {
        if has_bit(other.fixed, slots.bit) {
            combine::<N, O>(mine.fixed, N::read(other.fixed, slots.at), slots.bit, slots.at);
        }
        Ok(())
    }

    fn finish(&self, slots: &Slots, rows: RowRange<'_>, _: &DataType) -> Result<ArrayRef> {
        Ok(rows.values::<N>(slots.at, slots.bit))
    }
}

#[inline]
fn combine<N, O>(row: &mut [u8], value: N, bit: usize, at: usize)
where
    N: Native + BitAnd<Output = N> + BitOr<Output = N> + BitXor<Output = N>,
    O: Operation,
{
    let combined = if has_bit(row, bit) { O::of(N::read(row, at), value) } else { value };
    combined.write(row, at);
    set_bit(row, bit);
}

#[cfg(test)]
#[path = "bits_tests.rs"]
mod tests;
