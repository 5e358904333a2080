//! From a URI to a connected store.
//!
//! Owns: the URI schemes, the check of storage options, which source of credentials is used, and building `object_store`
//! clients with their retries off.
//! Does not own: requests (`retry`), which options contradict each other (`env_vars`), how credentials are fetched and
//! kept (`credentials`), nor reading Hadoop's settings (Python translates them to storage options).

use super::credentials::{ObservedProvider, Provider, Renew};
use super::diagnose::{CredentialSource, diagnose, disk_error};
use super::env_vars::{EnvVars, StoreKey, Topic, is_secret, topics};
use super::local::LocalFiles;
use super::profile;
use super::redact::{Redactor, clean_url};
use crate::forked::PerProcess;
use fastchangelog_format::config::{Options, nearest};
use fastchangelog_format::error::{Cause, Error, ErrorKind, Result, Subject};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::memory::InMemory;
use object_store::path::Path as ObjectPath;
use object_store::{ClientConfigKey, ObjectStore, RetryConfig};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use url::Url;

const SCHEMES: &str = "file://, s3:// (s3a://), gs://, az:// (abfss://), http(s):// and memory://";

/// A connected store, and the user's folder in it.
pub(super) struct Connected {
    pub(super) store: Arc<dyn ObjectStore>,
    /// The folder inside the store; empty for its root.
    pub(super) prefix: String,
    /// The folder as the user wrote it, without credentials and trailing slashes.
    pub(super) uri: String,
    /// The folder on disk, for `file://`.
    pub(super) local: Option<PathBuf>,
    /// False for memory and files of this machine, which gain nothing by a second attempt beside a slow one.
    pub(super) remote: bool,
    /// Which store this is, for copies that it makes by itself; none if it was not tried there.
    pub(super) identity: Option<String>,
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
            .with_remedy(format_args!("give a folder as {SCHEMES}")));
    }
    let Some(scheme) = scheme_of(trimmed) else {
        check_no_options(storage_options, "file://")?;
        let path =
            std::path::absolute(trimmed).map_err(|e| Error::io(format!("cannot resolve the path {trimmed}"), &e))?;
        return local(&path, options);
    };
    let shown = clean_url(trimmed);
    let url = Url::parse(trimmed).map_err(|e| {
        Error::invalid(format!("{shown} is not a URI: {e}")).with_remedy(format_args!("use {SCHEMES}")).with_source(e)
    })?;
    if url.password().is_some() {
        return Err(
            Error::invalid(format!("{shown} holds a password")).with_remedy("pass credentials as `storage_options`")
        );
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(Error::invalid(format!("{shown} has a query or a fragment, which a folder cannot have"))
            .with_remedy("pass tokens as `storage_options`, and write `?` and `#` in names as %3F and %23"));
    }
    match scheme.to_ascii_lowercase().as_str() {
        "file" => {
            if let Some(host) = url.host_str().filter(|h| *h != "localhost") {
                return Err(Error::invalid(format!("{shown} names a host `{host}`"))
                    .with_remedy("a local folder has three slashes: file:///path"));
            }
            check_no_options(storage_options, "file://")?;
            let path = PathBuf::from(percent_decode(url.path(), &shown)?);
            local(&path, options)
        }
        "memory" => {
            check_no_options(storage_options, "memory://")?;
            let name = url.host_str().unwrap_or_default().to_owned();
            let store = Arc::clone(MEMORY.get().lock().entry(name.clone()).or_default());
            let prefix = prefix_of(&url, &shown)?;
            Ok(Connected {
                store,
                uri: join_uri(&format!("memory://{name}"), &prefix),
                prefix,
                local: None,
                remote: false,
                identity: Some(format!("memory://{name}")),
                redactor: Redactor::default(),
                renew: None,
            })
        }
        scheme => remote(scheme, &url, &shown, storage_options, provider, options, environment),
    }
}

/// The scheme, if there is one: `name://` or `file:`; anything else is a plain path.
fn scheme_of(uri: &str) -> Option<&str> {
    let (scheme, rest) = uri.split_once(':')?;
    let named = scheme.len() > 1
        && scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    (named && (rest.starts_with('/') || !scheme.contains('.'))).then_some(scheme)
}

fn local(path: &Path, options: &Options) -> Result<Connected> {
    let uri = Url::from_file_path(path)
        .map_or_else(|()| format!("file://{}", path.display()), |u| u.to_string())
        .trim_end_matches('/')
        .to_owned();
    std::fs::create_dir_all(path).map_err(|e| {
        disk_error(format_args!("cannot make the folder of {uri}"), &e, ErrorKind::Store)
            .with_subject(Subject::Path(path.to_owned()))
    })?;
    let store = LocalFiles::open(path, options.file_sync)
        .map_err(|e| Error::store(format!("cannot open the folder of {uri}: {e}")).with_causes(Cause::behind(&e)))?;
    Ok(Connected {
        store: Arc::new(store),
        prefix: String::new(),
        uri,
        local: Some(path.to_owned()),
        remote: false,
        identity: None,
        redactor: Redactor::default(),
        renew: None,
    })
}

fn remote(
    scheme: &str,
    url: &Url,
    shown: &str,
    storage_options: &BTreeMap<String, String>,
    provider: Option<Provider>,
    options: &Options,
    environment: &EnvVars,
) -> Result<Connected> {
    let given_secrets = storage_options.iter().filter(|(name, _)| is_secret(name)).map(|(_, value)| value);
    let redactor = Redactor::new(given_secrets.chain(environment.secrets()).cloned());
    let host = url.host_str().filter(|h| !h.is_empty());
    let host = host.ok_or_else(|| {
        Error::invalid(format!("{shown} names no bucket")).with_remedy(format_args!("write {scheme}://bucket/folder"))
    })?;
    let failed = |e: object_store::Error| {
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
    let plain_http = storage_options
        .iter()
        .any(|(k, v)| k.to_ascii_lowercase().contains("endpoint") && v.trim_start().starts_with("http://"));

    let mut renew: Option<Arc<dyn Renew>> = None;
    // The builder with `$beside` (from farther away) and `$given`, and then with credentials that are watched where they
    // are fetched: by the caller's function, or by the store that a first build makes.
    macro_rules! build {
        ($builder:expr, $key:ty, $url:expr, $beside:expr, $given:expr, $fetched:expr) => {{
            let mut builder = $builder.with_url($url).with_retry(no_retries());
            for (key, value) in $beside {
                builder = builder.with_config(key, value);
            }
            if !set("timeout") {
                builder = builder.with_config(<$key>::Client(ClientConfigKey::Timeout), &timeout);
            }
            if plain_http {
                builder = builder.with_config(<$key>::Client(ClientConfigKey::AllowHttp), "true");
            }
            for (key, value) in $given {
                builder = builder.with_config(key, value);
            }
            match (provider, $fetched) {
                (Some(provider), _) => {
                    let (credentials, renewed_by) = provider.connect(&redactor)?;
                    renew = Some(renewed_by);
                    builder = builder.with_credentials(credentials);
                }
                (None, Some(source)) => {
                    let first = builder.clone().build().map_err(failed)?;
                    let watched = ObservedProvider::over(Arc::clone(first.credentials()), source, redactor.clone());
                    builder = builder.with_credentials(watched);
                }
                (None, None) => {}
            }
            Arc::new(builder.build().map_err(failed)?)
        }};
    }

    let mut identity = None;
    let (store, base): (Arc<dyn ObjectStore>, String) = match scheme {
        "s3" | "s3a" => {
            let (profile, storage_options) = profile::split(storage_options);
            let given = parsed::<AmazonS3ConfigKey>(&storage_options, scheme, S3_OPTIONS)?;
            let mut beside = beside(&given, provider.is_some() || profile.is_some(), environment);
            let more = profile::options(profile.as_deref(), provider.is_some(), &given, &beside, environment)?;
            redactor.learn(more.iter().filter(|(key, _)| key.topic() == Topic::Keys).map(|(_, value)| value.clone()));
            beside.extend(more);
            let fetched = source(given.iter().chain(&beside));
            // The store itself compares what arrived with what was sent: its answer covers the content.
            let builder = AmazonS3Builder::new().with_config(AmazonS3ConfigKey::Checksum, "sha256");
            let base = format!("s3://{host}");
            let of_place =
                |key: &AmazonS3ConfigKey| key.topic() == Topic::Endpoint || *key == AmazonS3ConfigKey::Bucket;
            let said = given.iter().chain(&beside).filter(|(key, _)| of_place(key)).map(|(_, value)| value.as_str());
            identity = Some(said.fold(base.clone(), |identity, value| format!("{identity} {value}")));
            (build!(builder, AmazonS3ConfigKey, &base, beside, given, fetched), base)
        }
        "gs" | "gcs" => {
            let given = parsed::<GoogleConfigKey>(storage_options, scheme, GOOGLE_OPTIONS)?;
            let beside = beside(&given, provider.is_some(), environment);
            // Which file or service gives them, only the client knows.
            let fetched = Some(CredentialSource::Service);
            let base = format!("gs://{host}");
            (build!(GoogleCloudStorageBuilder::new(), GoogleConfigKey, &base, beside, given, fetched), base)
        }
        "az" | "azure" | "adl" | "abfs" | "abfss" => {
            let base = match url.username() {
                "" => format!("{scheme}://{host}"),
                container => format!("{scheme}://{container}@{host}"),
            };
            let given = parsed::<AzureConfigKey>(storage_options, scheme, AZURE_OPTIONS)?;
            let beside = beside(&given, provider.is_some(), environment);
            let fetched = source(given.iter().chain(&beside));
            (build!(MicrosoftAzureBuilder::new(), AzureConfigKey, &base, beside, given, fetched), base)
        }
        "http" | "https" => {
            let base = url[..url::Position::BeforePath].to_owned();
            let mut builder = HttpBuilder::new().with_url(&base).with_retry(no_retries());
            if !set("timeout") {
                builder = builder.with_config(ClientConfigKey::Timeout, &timeout);
            }
            if scheme == "http" {
                builder = builder.with_config(ClientConfigKey::AllowHttp, "true");
            }
            for (name, value) in storage_options {
                let key = ClientConfigKey::from_str(&name.to_ascii_lowercase())
                    .map_err(|_| unknown_option(name, scheme, CLIENT_OPTIONS))?;
                builder = builder.with_config(key, value);
            }
            (Arc::new(builder.build().map_err(failed)?), base)
        }
        _ => {
            return Err(Error::invalid(format!("{shown} has the scheme `{scheme}`, which is not supported"))
                .with_remedy(format_args!("use {SCHEMES}")));
        }
    };
    let prefix = prefix_of(url, shown)?;
    Ok(Connected { store, uri: join_uri(&base, &prefix), prefix, local: None, remote: true, identity, redactor, renew })
}

/// The storage options of a kind of store; an unknown name is an error.
fn parsed<K: StoreKey>(
    storage_options: &BTreeMap<String, String>,
    scheme: &str,
    names: &[&'static str],
) -> Result<Vec<(K, String)>> {
    let parse = |(name, value): (&String, &String)| match K::named(name) {
        Some(key) => Ok((key, value.clone())),
        None => Err(unknown_option(name, scheme, names)),
    };
    storage_options.iter().map(parse).collect()
}

/// What the environment adds to the options that are `given`, and to a provider or a profile that is named.
fn beside<K: StoreKey>(given: &[(K, String)], named: bool, environment: &EnvVars) -> Vec<(K, String)> {
    let mut about = topics(given);
    about.extend(named.then_some(Topic::Named));
    environment.options(&about)
}

/// The source that credentials will be fetched from; none if the options hold them.
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

fn prefix_of(url: &Url, shown: &str) -> Result<String> {
    ObjectPath::from_url_path(url.path())
        .map(|p| p.as_ref().to_owned())
        .map_err(|e| Error::invalid(format!("{shown} has an unusable path: {e}")).with_source(e))
}

fn percent_decode(path: &str, shown: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let hex = tail.get(..2).filter(|_| *first == b'%').and_then(|h| std::str::from_utf8(h).ok());
        match hex.and_then(|h| u8::from_str_radix(h, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).map_err(|_| Error::invalid(format!("the path of {shown} is not UTF-8")))
}

/// `base/prefix`, without a trailing slash.
pub(super) fn join_uri(base: &str, prefix: &str) -> String {
    if prefix.is_empty() { base.to_owned() } else { format!("{base}/{prefix}") }
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
