//! The aggregate functions, one row and one accumulator each.
//!
//! Owns: the table: names, aliases, arguments and results. Python's table, its builders, the texts of errors and
//! docs/aggregates.md come from it.
//! Does not own: the computation of a function; its family's file does.
//!
//! To add a function: a row here, an accumulator in a family's file. Stored states name functions, so a name in the
//! table and its accumulator's layout never change.
//!
//! A row has a line `// fc.name(arguments)` for each builder of Python: its example, then `: text` where the docstring is
//! not the row's, or ` is name` where an alias makes an aggregate of the first name.

mod approx_count_distinct;
mod argument;
mod avg;
mod bits;
mod boolean;
mod by;
mod collect;
mod count;
mod covariance;
mod decimal;
mod doubles;
mod edge;
mod elements;
mod extreme;
mod form;
mod histogram;
mod histogram_numeric;
mod hyperloglog;
mod interval;
mod listagg;
mod mode;
mod moments;
mod percentile;
mod percentile_approx;
mod product;
mod quantile_summary;
mod registers;
mod scala_set;
mod spark_hash;
mod sum;

use super::accumulator::{Bound, Call};
pub use approx_count_distinct::DEVIATIONS;
pub use argument::Argument;

/// An aggregate function, as its row in the table says.
#[derive(Debug)]
pub struct AggregateFunction {
    /// Spark's name, which is that in descriptions of stored rows.
    pub name: &'static str,
    /// Spark's other names of the same function.
    pub aliases: &'static [&'static str],
    /// Its arguments.
    pub arguments: &'static [Argument],
    /// The kind of its variadic arguments, if it takes any.
    pub more: Option<Argument>,
    /// True if it can leave out nulls or keep them.
    pub ignores_nulls: bool,
    /// The type of its result, for readers.
    pub result: &'static str,
    /// A description of its result, for readers.
    pub doc: &'static str,
    bind: fn(&Call<'_>) -> Option<Bound>,
}

/// Makes [`AggregateFunction::ALL`] of its rows:
/// `name | alias (arguments, ..any number) ignore_nulls -> "result" = bind;`
macro_rules! functions {
    (@more) => { None };
    (@more $more:ident) => { Some(Argument::$more) };
    (@ignores_nulls) => { false };
    (@ignores_nulls ignore_nulls) => { true };
    ($(
        $(#[doc = $doc:literal])*
        $name:ident $(| $alias:ident)* ($($argument:ident),* $(..$more:ident)?) $($ignores_nulls:ident)?
            -> $result:literal = $bind:path;
    )*) => {
        impl AggregateFunction {
            /// Every function, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self {
                name: stringify!($name),
                aliases: &[$(stringify!($alias)),*],
                arguments: &[$(Argument::$argument),*],
                more: functions!(@more $($more)?),
                ignores_nulls: functions!(@ignores_nulls $($ignores_nulls)?),
                result: $result,
                doc: concat!($($doc),*),
                bind: $bind,
            }),*];
        }
    };
}

functions! {
    /// Number of rows; with arguments, of rows in which none of them is null.
    // fc.count(), fc.count("price"): Number of rows, or of rows where `col` is not null.
    count(..Presence) -> "bigint" = count::count;
    /// Number of rows in which the value is true.
    // fc.count_if("late")
    count_if(Boolean) -> "bigint" = count::count_if;
    /// The estimated number of distinct values that are not null, by HyperLogLog++; it deviates by 5%, or by the second
    /// argument.
    // fc.approx_count_distinct("bidder"): The estimated number of distinct values that are not null; it deviates by 5%.
    approx_count_distinct(Hashed ..Deviation) -> "bigint" = approx_count_distinct::approx_count_distinct;
    /// Sum of the values that are not null; null if there are none.
    // fc.sum("price")
    sum(Quantity) -> "bigint of integers, double of floats, decimal(p+10, s) of decimal(p, s), intervals of their type" = sum::sum;
    /// Mean of the values that are not null; null if there are none.
    // fc.avg("price")
    // fc.mean("price") is avg
    avg | mean(Quantity) -> "double of integers and floats, decimal(p+4, s+4) of decimal(p, s), intervals of their type" = avg::avg;
    /// Sum of the values that are not null; null if there are none, or if the sum overflows on the way.
    // fc.try_sum("price")
    try_sum(Quantity) -> "that of `sum`" = sum::try_sum;
    /// Mean of the values that are not null; null if there are none, or if their sum overflows on the way.
    // fc.try_avg("price")
    try_avg(Quantity) -> "that of `avg`" = avg::try_avg;
    /// Smallest value that is not null (NaN is the greatest number).
    // fc.min("price")
    min(Ordered) -> "that of the argument" = extreme::min;
    /// Greatest value that is not null (NaN is the greatest number).
    // fc.max("price")
    max(Ordered) -> "that of the argument" = extreme::max;
    /// The first value in the order of arrival.
    // fc.first("price", ignorenulls=True): The first value seen, nulls included unless `ignorenulls`.
    // fc.any_value("price", ignorenulls=True): A value of the key: the first one seen, nulls included unless
    //     `ignorenulls`.
    first | first_value | any_value(Any) ignore_nulls -> "that of the argument" = edge::first;
    /// The last value in the order of arrival.
    // fc.last("price"): The last value seen, nulls included unless `ignorenulls`.
    last | last_value(Any) ignore_nulls -> "that of the argument" = edge::last;
    /// The first argument in the row with the greatest second one.
    // fc.max_by("bidder", "price"): The value of `col` in the row with the greatest `ord`.
    max_by(Any, Ordered) -> "that of the first argument" = by::max_by;
    /// The first argument in the row with the smallest second one.
    // fc.min_by("bidder", "price"): The value of `col` in the row with the smallest `ord`.
    min_by(Any, Ordered) -> "that of the first argument" = by::min_by;
    /// True if every value that is not null is true.
    // fc.bool_and("paid")
    // fc.all("paid") is bool_and
    bool_and | every | all(Boolean) -> "boolean" = boolean::bool_and;
    /// True if any value is true.
    // fc.bool_or("late")
    // fc.any("late") is bool_or
    bool_or | some | any(Boolean) -> "boolean" = boolean::bool_or;
    /// Sample variance: the mean square of deviations from the mean, with n - 1; null for one value or none.
    // fc.var_samp("price")
    // fc.variance("price")
    var_samp | variance(Double) -> "double" = moments::var_samp;
    /// Population variance: the mean square of deviations from the mean; null if there are no values.
    // fc.var_pop("price")
    var_pop(Double) -> "double" = moments::var_pop;
    /// Sample standard deviation, the root of `var_samp`; null for one value or none.
    // fc.stddev_samp("price")
    // fc.stddev("price")
    // fc.std("price")
    stddev_samp | stddev | std(Double) -> "double" = moments::stddev_samp;
    /// Population standard deviation, the root of `var_pop`; null if there are no values.
    // fc.stddev_pop("price")
    stddev_pop(Double) -> "double" = moments::stddev_pop;
    /// Skewness of the values; null if there are none or all are equal.
    // fc.skewness("price")
    skewness(Double) -> "double" = moments::skewness;
    /// Excess kurtosis of the values; null if there are none or all are equal.
    // fc.kurtosis("price")
    kurtosis(Double) -> "double" = moments::kurtosis;
    /// The exact percentile of the numbers that are not null, or several, with a linear interpolation; each row counts
    /// as often as its frequency says. Null if there are none.
    // fc.percentile("price", "half"): The exact percentile of `col`; `percentage` is the same in all rows, from 0 to 1.
    percentile(Double, Percentages ..Integer) -> "double, or array of double for an array of percentages" = percentile::percentile;
    /// The exact median of the numbers that are not null; null if there are none.
    // fc.median("price")
    median(Double) -> "double" = percentile::median;
    /// The percentile of the values that are not null, or several, with an error of its rank of one in `accuracy`, 10,000
    /// by default: always one of the values. Null if there are none.
    // fc.percentile_approx("price", "half"): An approximate percentile of `col`; `percentage` is the same in all rows,
    //     from 0 to 1.
    // fc.approx_percentile("price", "half") is percentile_approx
    percentile_approx | approx_percentile(Measured, Percentages ..Integer) -> "that of the argument, or an array of it for an array of percentages" = percentile_approx::percentile_approx;
    /// The values that are not null as the centers `x` and the heights `y` of so many bins, at least 2, in ascending
    /// order; null if there are none.
    // fc.histogram_numeric("price", "bins"): A histogram of `col` in at most `nb` bins; `nb` is a constant, from 2 on.
    histogram_numeric(Measured, Integer) -> "array of struct of x, that of the argument, and y, double" = histogram_numeric::histogram_numeric;
    /// Sample covariance of the rows in which neither value is null, with n - 1; null for one such row or none.
    // fc.covar_samp("price", "quantity")
    covar_samp(Double, Double) -> "double" = covariance::covar_samp;
    /// Population covariance of the rows in which neither value is null; null if there are none.
    // fc.covar_pop("price", "quantity")
    covar_pop(Double, Double) -> "double" = covariance::covar_pop;
    /// Pearson correlation of the rows in which neither value is null; null if either value is the same in all of them.
    // fc.corr("price", "quantity")
    corr(Double, Double) -> "double" = covariance::corr;
    /// The values that are not null, in the order of arrival; an empty array if there are none.
    // fc.collect_list("bidder")
    // fc.array_agg("bidder") is collect_list
    collect_list | array_agg(Any) -> "array of that of the argument" = collect::collect_list;
    /// The distinct values that are not null, each once; an empty array if there are none.
    // fc.collect_set("bidder")
    collect_set(Any) -> "array of that of the argument" = collect::collect_set;
    /// The texts or binaries that are not null, in the order of arrival, with the delimiter between them; null if there
    /// are none.
    // fc.listagg("bidder"): The texts or binaries that are not null, one behind the other in the order of arrival.
    listagg | string_agg(Text ..Text) -> "that of the argument" = listagg::listagg;
    /// The most frequent value that is not null; null if there are none. Of several the first that came, with a second
    /// argument that is true the smallest.
    // fc.mode("bidder"): The most frequent value that is not null; of several the first that came.
    mode(Any ..Boolean) -> "that of the argument" = mode::mode;
    /// Bitwise AND of the integers that are not null, of their type; null if there are none.
    // fc.bit_and("flags")
    bit_and(Integer) -> "that of the argument" = bits::bit_and;
    /// Bitwise OR of the integers that are not null, of their type; null if there are none.
    // fc.bit_or("flags")
    bit_or(Integer) -> "that of the argument" = bits::bit_or;
    /// Bitwise XOR of the integers that are not null, of their type; null if there are none.
    // fc.bit_xor("flags")
    bit_xor(Integer) -> "that of the argument" = bits::bit_xor;
    /// Product of the values that are not null, as doubles; null if there are none.
    // fc.product("price")
    product(Double) -> "double" = product::product;
}

impl AggregateFunction {
    /// The function of a name or an alias.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        Self::ALL.iter().find(|function| function.name == name || function.aliases.contains(&name))
    }

    /// All names, in a sentence.
    pub(super) fn names() -> String {
        let names: Vec<_> = Self::ALL.iter().map(|function| function.name).collect();
        match names.split_last() {
            Some((last, others)) if !others.is_empty() => format!("{} and {last}", others.join(", ")),
            _ => names.concat(),
        }
    }

    /// True if it takes this number of arguments.
    pub(super) fn takes(&self, arguments: usize) -> bool {
        arguments == self.arguments.len() || (self.more.is_some() && arguments > self.arguments.len())
    }

    /// Its accumulator for arguments of some types; none if it does not take them. Their number is one that it takes.
    pub(super) fn bind(&self, call: &Call<'_>) -> Option<Bound> {
        let arguments = self.arguments.iter().copied().chain(std::iter::repeat(self.more.unwrap_or(Argument::Any)));
        let accepted = call.types.iter().zip(arguments).all(|(data_type, argument)| argument.accepts(data_type));
        if accepted { (self.bind)(call) } else { None }
    }
}
