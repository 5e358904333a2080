//! `fastchangelog._internal`: signatures between Python and Rust, and one gate.
//!
//! Owns: argument conversion and the module's contents. Does not own: behaviour; if a function here needs an `if` about
//! business rules, the rule is in the wrong crate. Documentation for readers is in `_internal.pyi`.

mod aggregates;
mod arrow_interface;
mod attached;
mod changelog;
mod detached;
mod ending;
mod foreign_buffer;
mod fork;
mod futures;
mod handle;
mod in_use;
mod metrics;
mod options;
mod provider;
mod rows;
mod savepoint_folder;
mod server;
mod session;
mod spark_checkpoint;
mod split;
mod state;
mod state_codec;
mod state_session;
mod state_timers;
mod state_types;
mod store;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
fn _internal(module: &Bound<'_, PyModule>) -> PyResult<()> {
    fastchangelog_store::forked::notice_forks();
    attached::notice_interpreter(module.py());
    ending::notice_end(module.py())?;
    module.add("__version__", fastchangelog_server::VERSION)?;
    module.add("DEVIATIONS", fastchangelog_columns::aggregate::DEVIATIONS)?;
    module.add("PROTOCOL_VERSION", fastchangelog_server::protocol::PROTOCOL_VERSION)?;
    module.add_class::<changelog::ChangelogStorage>()?;
    module.add_class::<changelog::ChangelogWriter>()?;
    module.add_class::<changelog::ChangelogReader>()?;
    module.add_class::<changelog::ChangeBatches>()?;
    module.add_class::<changelog::ChangelogHandle>()?;
    module.add_class::<state::LocalState>()?;
    module.add_class::<state_types::ValueState>()?;
    module.add_class::<state_types::MapState>()?;
    module.add_class::<state_types::ListState>()?;
    module.add_class::<state_types::AggregatingState>()?;
    module.add_class::<state_timers::TimerState>()?;
    module.add_class::<state::StateScan>()?;
    module.add_class::<state::StateHandle>()?;
    module.add_class::<state::StateMaterialization>()?;
    module.add_class::<split::Splitter>()?;
    module.add_class::<rows::RowSplitter>()?;
    module.add_class::<rows::RowGrouper>()?;
    module.add_class::<rows::RowChunks>()?;
    module.add_class::<rows::RowChunk>()?;
    module.add_class::<store::ObjectFolder>()?;
    module.add_class::<savepoint_folder::SavepointFolder>()?;
    module.add_class::<savepoint_folder::SavepointEntries>()?;
    module.add_class::<session::SessionClient>()?;
    module.add_class::<spark_checkpoint::SparkCheckpoint>()?;
    module.add_class::<spark_checkpoint::StateRows>()?;
    module.add_class::<spark_checkpoint::StoredState>()?;
    module.add_class::<spark_checkpoint::TextVariable>()?;
    module.add_class::<session::ResultBatches>()?;
    module.add_class::<session::ServerClient>()?;
    module.add_class::<state_session::StateSession>()?;
    module.add_class::<state_codec::StateCodec>()?;
    module.add_class::<aggregates::Accumulators>()?;
    module.add_class::<server::Server>()?;
    module.add_function(wrap_pyfunction!(handle::handle_json, module)?)?;
    module.add_function(wrap_pyfunction!(store::folder_note_json, module)?)?;
    module.add_function(wrap_pyfunction!(store::start_note, module)?)?;
    module.add_function(wrap_pyfunction!(store::start_note_json, module)?)?;
    module.add_function(wrap_pyfunction!(store::head_json, module)?)?;
    module.add_function(wrap_pyfunction!(metrics::metrics_table, module)?)?;
    module.add_function(wrap_pyfunction!(metrics::process_metrics, module)?)?;
    module.add_function(wrap_pyfunction!(aggregates::aggregate_functions, module)?)?;
    module.add_function(wrap_pyfunction!(aggregates::aggregate_results, module)?)?;
    module.add_function(wrap_pyfunction!(options::options_table, module)?)?;
    module.add_function(wrap_pyfunction!(options::parse_options, module)?)?;
    module.add_function(wrap_pyfunction!(options::parse_duration, module)?)?;
    module.add_function(wrap_pyfunction!(options::parse_size, module)?)?;
    module.add_function(wrap_pyfunction!(options::overlay_storage_options, module)?)?;
    module.add_function(wrap_pyfunction!(options::is_secret_option, module)?)?;
    module.add_function(wrap_pyfunction!(options::default_max_parallelism, module)?)?;
    module.add_function(wrap_pyfunction!(options::build_info, module)?)?;
    module.add_function(wrap_pyfunction!(options::failpoint, module)?)?;
    module.add_function(wrap_pyfunction!(savepoint_folder::spec_schema, module)?)?;
    module.add_function(wrap_pyfunction!(savepoint_folder::schema_difference, module)?)?;
    module.add_function(wrap_pyfunction!(split::spec_buffers, module)?)?;
    module.add_function(wrap_pyfunction!(aggregates::spark_collected, module)?)?;
    module.add_function(wrap_pyfunction!(split::spec_check, module)?)?;
    module.add_function(wrap_pyfunction!(store::clean_uri, module)?)?;
    module.add_function(wrap_pyfunction!(store::uri_schemes, module)?)?;
    module.add_function(wrap_pyfunction!(store::object_type, module)?)?;
    module.add_function(wrap_pyfunction!(store::manifest_json, module)?)?;
    module.add_function(wrap_pyfunction!(store::segment_index_json, module)?)?;
    Ok(())
}
