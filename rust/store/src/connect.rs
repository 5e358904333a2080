//! From a URI to a connected store.
//!
//! Owns: the check of storage options, which source of credentials is used, and building `object_store`
//! clients with their retries off.
//! Does not own: requests (`retry`), the path of a URI (`address`), the match of endpoint and bucket (`s3_endpoint`),
//! contradictions between options (`env_vars`), fetching and keeping credentials (`credentials`), Hadoop's settings
//! (Python translates them to storage options).

use super::address::{address, clean_uri, of_disk, percent_decode, prefix_of, scheme_of};
use super::credentials::{ObservedProvider, Provider, Renew};
use super::diagnose::{CredentialSource, diagnose, disk_error, says_no_certificates};
use super::env_vars::{EnvVars, StoreKey, Topic, is_on, is_secret, tidied, topics};
use super::listing::FilteredListings;
use super::local::LocalFiles;
use super::machine::{self, Machine};
use super::redact::Redactor;
use super::scheme::{StoreKind, listed, store_kind};
use super::{checksum, profile, s3_endpoint, transport};
use crate::forked::PerProcess;
use fastchangelog_format::config::{Options, nearest};
use fastchangelog_format::error::{Cause, Error, ErrorKind, Result, Subject};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::memory::InMemory;
use object_store::{ClientConfigKey, ObjectStore, RetryConfig};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use url::Url;

/// A connected store, and the user's folder in it.
pub(super) struct Connected {
    pub(super) store: Arc<dyn ObjectStore>,
    /// The folder inside the store; empty for its root.
    pub(super) prefix: String,
    /// The folder as the user wrote it, without credentials and trailing slashes.
    pub(super) uri: String,
    /// The folder on disk, for `file://`.
    pub(super) local: Option<PathBuf>,
    /// False for memory and local files, which gain nothing from a second attempt beside a slow one.
    pub(super) remote: bool,
    /// Identity of the store, for server-side copies; none for kinds of store where these are untested.
    pub(super) identity: Option<String>,
    /// The store and its bucket, as addressed.
    pub(super) place: String,
    pub(super) redactor: Redactor,
    /// How other credentials are had when the store refuses those that it got.
    pub(super) renew: Option<Arc<dyn Renew>>,
}

/// Names of storage options that are suggested when an unknown one is close.
const S3_OPTIONS: &[&str] = &[
    "access_key_id",
    "secret_access_key",
    "session_token",
    "region",
    "endpoint",
    "bucket",
    "allow_http",
    "virtual_hosted_style_request",
    "unsigned_payload",
    "checksum_algorithm",
    "role_arn",
    "role_session_name",
    "web_identity_token_file",
    "skip_signature",
    "conditional_put",
    "copy_if_not_exists",
    "request_payer",
    "server_side_encryption",
    "sse_kms_key_id",
    "metadata_endpoint",
    "imdsv1_fallback",
    "disable_tagging",
    "profile",
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_session_token",
    "aws_region",
    "aws_endpoint",
    "aws_profile",
];
const AZURE_OPTIONS: &[&str] = &[
    "account_name",
    "account_key",
    "access_key",
    "client_id",
    "client_secret",
    "tenant_id",
    "authority_host",
    "sas_token",
    "sas_key",
    "bearer_token",
    "endpoint",
    "use_emulator",
    "use_azure_cli",
    "federated_token_file",
    "msi_endpoint",
    "object_id",
    "container_name",
    "skip_signature",
    "allow_http",
    "use_fabric_endpoint",
];
const GOOGLE_OPTIONS: &[&str] = &[
    "service_account",
    "service_account_path",
    "service_account_key",
    "application_credentials",
    "bucket",
    "base_url",
    "bearer_token",
    "skip_signature",
    "allow_http",
];
const CLIENT_OPTIONS: &[&str] = &[
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "timeout",
    "read_timeout",
    "user_agent",
    "proxy_url",
    "proxy_ca_certificate",
    "proxy_excludes",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "http1_only",
    "http2_only",
    "disable_system_certificates",
    "randomize_addresses",
    "default_content_type",
];

/// The file of Google's command line, in the user's folder.
const GOOGLE_CREDENTIALS: &str = ".config/gcloud/application_default_credentials.json";

/// Stores of `memory://<name>`, one per name and process: a forked child begins with none.
static MEMORY: PerProcess<Mutex<HashMap<String, Arc<InMemory>>>> = PerProcess::new(Mutex::default);

/// Connects to `uri`; nothing is sent yet, but the folder of a `file://` URI is made.
pub(super) fn connect(
    uri: &str,
    storage_options: &BTreeMap<String, String>,
    provider: Option<Provider>,
    options: &Options,
    environment: &EnvVars,
) -> Result<Connected> {
    let trimmed = uri.trim();
    if trimmed.is_empty() {
        return Err(Error::invalid("the location of the state is empty")
            .with_remedy(format_args!("give a folder as one of {}", listed())));
    }
    let Some(scheme) = scheme_of(trimmed) else {
        check_no_options(storage_options, "file://")?;
        let path =
            std::path::absolute(trimmed).map_err(|e| Error::io(format!("cannot resolve the path {trimmed}"), &e))?;
        return local(&path, options);
    };
    let shown = clean_uri(trimmed);
    let url = Url::parse(trimmed).map_err(|e| {
        Error::invalid(format!("{shown} is not a URI: {e}"))
            .with_remedy(format_args!("use {}", listed()))
            .with_source(e)
    })?;
    let scheme = scheme.to_ascii_lowercase();
    let kind = store_kind(&scheme).ok_or_else(|| {
        Error::invalid(format!("{shown} has the scheme `{scheme}`, which is not supported"))
            .with_remedy(format_args!("use {}", listed()))
    });
    let has_container = kind.as_ref().is_ok_and(|kind| *kind == StoreKind::Azure);
    if url.password().is_some() || !(url.username().is_empty() || has_container) {
        return Err(Error::invalid(format!("{shown} holds a user's name or a password"))
            .with_remedy("pass credentials as `storage_options`"));
    }
    if url.port().is_some() && !matches!(url.scheme(), "http" | "https") {
        return Err(Error::invalid(format!("{shown} has a port, which no bucket has"))
            .with_remedy("pass the address of the store as the storage option `endpoint`"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(Error::invalid(format!("{shown} has a query or a fragment, which a folder cannot have"))
            .with_remedy("pass tokens as `storage_options`, and write `?` and `#` in names as %3F and %23"));
    }
    match kind? {
        StoreKind::Local => {
            if let Some(host) = url.host_str().filter(|h| *h != "localhost") {
                return Err(Error::invalid(format!("{shown} names a host `{host}`"))
                    .with_remedy("write a local folder with three slashes: file:///path"));
            }
            check_no_options(storage_options, "file://")?;
            let path = PathBuf::from(percent_decode(url.path(), &shown)?);
            local(&path, options)
        }
        StoreKind::Memory => {
            check_no_options(storage_options, "memory://")?;
            let name = url.host_str().unwrap_or_default().to_owned();
            let store = Arc::clone(MEMORY.get().lock().entry(name.clone()).or_default());
            let prefix = prefix_of(&url, &shown)?;
            Ok(Connected {
                store,
                uri: address(&format!("memory://{name}"), &prefix),
                prefix,
                local: None,
                remote: false,
                identity: Some(format!("memory://{name}")),
                place: format!("memory://{name}"),
                redactor: Redactor::default(),
                renew: None,
            })
        }
        kind => remote(kind, &scheme, &url, &shown, storage_options, provider, options, environment),
    }
}

fn local(path: &Path, options: &Options) -> Result<Connected> {
    let uri = of_disk(path);
    std::fs::create_dir_all(path).map_err(|e| {
        disk_error(format_args!("cannot make the folder of {uri}"), &e, ErrorKind::Store)
            .with_subject(Subject::Path(path.to_owned()))
    })?;
    let store = LocalFiles::open(path, options.file_sync)
        .map_err(|e| Error::store(format!("cannot open the folder of {uri}: {e}")).with_causes(Cause::behind(&e)))?;
    Ok(Connected {
        store: Arc::new(store),
        prefix: String::new(),
        place: uri.clone(),
        uri,
        local: Some(path.to_owned()),
        remote: false,
        identity: None,
        redactor: Redactor::default(),
        renew: None,
    })
}

#[expect(clippy::too_many_arguments, reason = "the parts of an address beside the caller's own arguments")]
fn remote(
    kind: StoreKind,
    scheme: &str,
    url: &Url,
    shown: &str,
    storage_options: &BTreeMap<String, String>,
    provider: Option<Provider>,
    options: &Options,
    environment: &EnvVars,
) -> Result<Connected> {
    let given_secrets = storage_options.iter().filter(|(name, _)| is_secret(name)).map(|(_, value)| value.trim());
    let redactor = Redactor::new(given_secrets.chain(environment.secrets()).map(str::to_owned));
    let host = url.host_str().filter(|h| !h.is_empty());
    let host = host.ok_or_else(|| {
        Error::invalid(format!("{shown} names no bucket")).with_remedy(format_args!("write {scheme}://bucket/folder"))
    })?;
    let failed = |e: object_store::Error| {
        if says_no_certificates(&e) {
            return transport::no_certificates(shown, environment);
        }
        let text = redactor.clean(&diagnose(&e).cause);
        Error::invalid(format!("cannot connect to {shown}: {text}"))
            .with_remedy("correct the storage options or the URI")
            .with_causes(redactor.clean_causes(Cause::behind(&e)))
    };
    // The client asks the process for its cryptography. A program that has installed another provider keeps it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // Ours is the only time limit that shall strike; the client's is a safety net behind it.
    let timeout = format!("{}s", options.request_timeout.as_secs().saturating_mul(10).max(10));
    let set = |key: &str| storage_options.keys().any(|k| k.eq_ignore_ascii_case(key));

    let mut renew: Option<Arc<dyn Renew>> = None;
    // The client of `$builder`; one for plain http needs no certificates.
    macro_rules! client {
        ($builder:expr, $key:expr, $plain_http:expr) => {
            match $builder.clone().build() {
                Err(e) if $plain_http && says_no_certificates(&e) => $builder.with_config($key, "true").build(),
                built => built,
            }
            .map_err(failed)?
        };
    }
    // The builder with `$beside` (from farther away) and `$given`, and then with credentials that are watched where
    // they are fetched: by the caller's function, or by the store that a first build makes.
    macro_rules! build {
        ($builder:expr, $key:ty, $url:expr, $beside:expr, $given:expr, $fetched:expr, $machine:expr) => {{
            let mut builder = $builder.with_url($url).with_retry(no_retries());
            for (key, value) in &$beside {
                builder = builder.with_config(*key, value);
            }
            if !set("timeout") {
                builder = builder.with_config(<$key>::Client(ClientConfigKey::Timeout), &timeout);
            }
            let plain_http = transport::is_plain_http(&$beside.iter().chain(&$given).collect::<Vec<_>>())?;
            for (key, value) in $given {
                builder = builder.with_config(key, value);
            }
            if plain_http {
                builder = builder.with_config(<$key>::Client(ClientConfigKey::AllowHttp), "true");
            }
            let without = <$key>::Client(ClientConfigKey::NoSystemCertificates);
            match (provider, $fetched) {
                (Some(provider), _) => {
                    let (credentials, renewed_by) = provider.connect(&redactor)?;
                    renew = Some(renewed_by);
                    builder = builder.with_credentials(credentials);
                }
                (None, Some(source)) => {
                    let first = client!(builder.clone(), without, plain_http);
                    let machine = Machine::at($machine);
                    let watched =
                        ObservedProvider::over(Arc::clone(first.credentials()), source, machine, redactor.clone());
                    builder = builder.with_credentials(watched);
                }
                (None, None) => {}
            }
            Arc::new(client!(builder, without, plain_http))
        }};
    }

    let mut identity = None;
    let (store, base): (Arc<dyn ObjectStore>, String) = match kind {
        StoreKind::S3 => {
            let (profile, storage_options) = profile::split(storage_options);
            let mut given = parsed::<AmazonS3ConfigKey>(&storage_options, scheme, S3_OPTIONS)?;
            let mut beside = beside(&given, provider.is_some() || profile.is_some(), environment)?;
            let more = profile::options(profile.as_deref(), provider.is_some(), &given, &beside, environment)?;
            redactor.learn(more.iter().filter(|(key, _)| key.topic() == Topic::Keys).map(|(_, value)| value.clone()));
            for (key, value) in more {
                beside.extend(tidied(&key, key.as_ref(), &value)?.map(|value| (key, value)));
            }
            let fetched = source(given.iter().chain(&beside));
            given.extend(s3_endpoint::fitting(host, &[&beside[..], &given[..]].concat())?);
            // The store verifies the received bytes, so its answer covers the content.
            let mut builder = AmazonS3Builder::new().with_http_connector(FilteredListings::default());
            for (key, value) in checksum::header(&mut given, &mut beside, environment)? {
                builder = builder.with_config(key, value);
            }
            let base = format!("s3://{host}");
            let of_place =
                |key: &AmazonS3ConfigKey| key.topic() == Topic::Endpoint || *key == AmazonS3ConfigKey::Bucket;
            let said = given
                .iter()
                .chain(&beside)
                .filter(|(key, _)| of_place(key))
                .map(|(_, value)| value.trim().trim_end_matches('/'));
            identity = Some(said.fold(base.clone(), |identity, value| format!("{identity} {value}")));
            let machine =
                last(&given, &beside, &AmazonS3ConfigKey::MetadataEndpoint).unwrap_or(machine::LINK_LOCAL).to_owned();
            (build!(builder, AmazonS3ConfigKey, &base, beside, given, fetched, &machine), base)
        }
        StoreKind::Google => {
            let given = parsed::<GoogleConfigKey>(storage_options, scheme, GOOGLE_OPTIONS)?;
            let beside = beside(&given, provider.is_some(), environment)?;
            // Which file or service gives them, only the client knows; without any it asks the machine.
            let is_said = topics(given.iter().chain(&beside)).iter().any(|topic| topic.is_source());
            let file = environment.get("HOME").map(|home| Path::new(home).join(GOOGLE_CREDENTIALS));
            let is_machine = !is_said && !file.is_some_and(|file| file.exists());
            let fetched = Some(if is_machine { CredentialSource::Machine } else { CredentialSource::Service });
            let moved = environment.get("GCE_METADATA_HOST").or(environment.get("GCE_METADATA_ROOT"));
            let machine = moved.map(|host| format!("http://{host}"));
            let machine = machine.as_deref().unwrap_or(machine::GOOGLE);
            let builder = GoogleCloudStorageBuilder::new().with_http_connector(FilteredListings::default());
            let base = format!("gs://{host}");
            (build!(builder, GoogleConfigKey, &base, beside, given, fetched, machine), base)
        }
        StoreKind::Azure => {
            let base = match url.username() {
                "" => format!("{scheme}://{host}"),
                container => format!("{scheme}://{container}@{host}"),
            };
            let given = parsed::<AzureConfigKey>(storage_options, scheme, AZURE_OPTIONS)?;
            let beside = beside(&given, provider.is_some(), environment)?;
            // The emulator's key is known.
            let is_emulated = last(&given, &beside, &AzureConfigKey::UseEmulator).is_some_and(is_on);
            let fetched = source(given.iter().chain(&beside)).filter(|_| !is_emulated);
            let machine = last(&given, &beside, &AzureConfigKey::MsiEndpoint).unwrap_or(machine::LINK_LOCAL).to_owned();
            let builder = MicrosoftAzureBuilder::new().with_http_connector(FilteredListings::default());
            (build!(builder, AzureConfigKey, &base, beside, given, fetched, &machine), base)
        }
        StoreKind::Http => {
            let base = url[..url::Position::BeforePath].to_owned();
            let mut builder = HttpBuilder::new().with_url(&base).with_retry(no_retries());
            if !set("timeout") {
                builder = builder.with_config(ClientConfigKey::Timeout, &timeout);
            }
            for (name, value) in storage_options {
                let key = ClientConfigKey::from_str(&name.to_ascii_lowercase())
                    .map_err(|_| unknown_option(name, scheme, CLIENT_OPTIONS))?;
                // A client's options have the same names for each store.
                let like = AmazonS3ConfigKey::Client(key);
                if let Some(value) = tidied(&like, name, value)? {
                    builder = builder.with_config(key, value);
                }
            }
            if scheme == "http" {
                builder = builder.with_config(ClientConfigKey::AllowHttp, "true");
            }
            (Arc::new(client!(builder, ClientConfigKey::NoSystemCertificates, scheme == "http")), base)
        }
        StoreKind::Local | StoreKind::Memory => unreachable!("connected without a client"),
    };
    let prefix = prefix_of(url, shown)?;
    let (uri, place) = (address(&base, &prefix), identity.clone().unwrap_or(base));
    Ok(Connected { store, uri, prefix, local: None, remote: true, identity, place, redactor, renew })
}

/// The storage options of a kind of store; an unknown name is an error.
fn parsed<K: StoreKey>(
    storage_options: &BTreeMap<String, String>,
    scheme: &str,
    names: &[&'static str],
) -> Result<Vec<(K, String)>> {
    let mut options = Vec::new();
    for (name, value) in storage_options {
        let key = K::named(name).ok_or_else(|| unknown_option(name, scheme, names))?;
        options.extend(tidied(&key, name, value)?.map(|value| (key, value)));
    }
    Ok(options)
}

/// The effective value of `key`: a given value takes precedence.
fn last<'a, K: StoreKey>(given: &'a [(K, String)], beside: &'a [(K, String)], key: &K) -> Option<&'a str> {
    given.iter().rev().chain(beside.iter().rev()).find(|(other, _)| other == key).map(|(_, value)| value.as_str())
}

/// The options that the environment adds to the `given` ones, and to a named provider or profile.
fn beside<K: StoreKey>(given: &[(K, String)], named: bool, environment: &EnvVars) -> Result<Vec<(K, String)>> {
    let mut about = topics(given);
    about.extend(named.then_some(Topic::Named));
    environment.options(&about)
}

/// The source of credentials; none if the options hold them.
fn source<'a, K: StoreKey + 'a>(options: impl Iterator<Item = &'a (K, String)>) -> Option<CredentialSource> {
    let about = topics(options);
    if about.contains(&Topic::Keys) {
        return None;
    }
    Some(if about.iter().any(|topic| topic.is_source()) {
        CredentialSource::Service
    } else {
        CredentialSource::Machine
    })
}

fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

fn unknown_option(name: &str, scheme: &str, known: &[&'static str]) -> Error {
    let candidates = known.iter().chain(CLIENT_OPTIONS).copied();
    let hint =
        nearest(&name.to_ascii_lowercase(), candidates).map_or_else(String::new, |n| format!("; did you mean `{n}`?"));
    Error::invalid(format!("unknown storage option `{name}` for {scheme}://{hint}"))
}

/// `file://` and `memory://` have no options; those of other stores are ignored, so that a configuration can be shared.
fn check_no_options(storage_options: &BTreeMap<String, String>, scheme: &str) -> Result<()> {
    let known = |name: &str| {
        AmazonS3ConfigKey::named(name).is_some()
            || AzureConfigKey::named(name).is_some()
            || GoogleConfigKey::named(name).is_some()
            || profile::is_option(name)
    };
    match storage_options.keys().find(|name| !known(name)) {
        Some(name) => Err(unknown_option(name, scheme.trim_end_matches("://"), S3_OPTIONS)),
        None => Ok(()),
    }
}
