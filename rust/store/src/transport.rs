//! How a client reaches its store: encrypted or not, and with which certificates.
//!
//! Owns: the choice of the endpoint, the test for plain http, and the behaviour and error on a machine without
//! certificates.
//! Does not own: the check of a certificate (the TLS library), errors of single requests (`diagnose`).
//!
//! A client loads the machine's certificates when it is built, and fails without any. A client for plain http is built
//! without certificates if the machine has none. Otherwise it keeps them, because a proxy or a credential service may
//! speak https even if the store does not.

use super::env_vars::{EnvVars, StoreKey, Topic, is_off, is_on};
use super::redact::clean_url;
use fastchangelog_format::error::{Error, Result};

const INSTALL: &str = "install them (Debian and Ubuntu: `apt install ca-certificates`; Alpine: `apk add ca-certificates`), \
                       or let SSL_CERT_FILE name a file or SSL_CERT_DIR a folder with them; an endpoint that is http:// \
                       needs none";

/// True for an address that is not encrypted.
pub(super) fn is_plain(address: &str) -> bool {
    address.trim_start().get(..7).is_some_and(|start| start.eq_ignore_ascii_case("http://"))
}

/// True if the endpoint of `options` (the later ones win) is plain http; an error if an option forbids that.
pub(super) fn is_plain_http<K: StoreKey>(options: &[&(K, String)]) -> Result<bool> {
    let endpoints = || options.iter().rev().filter(|(key, _)| key.topic() == Topic::Endpoint);
    let endpoint = endpoints().find(|(key, _)| key.is_first_endpoint()).or_else(|| endpoints().next());
    let Some((_, address)) = endpoint.filter(|(_, address)| is_plain(address)) else {
        // That of Azure is on this machine.
        let emulator = K::named("use_emulator");
        return Ok(options.iter().any(|(key, value)| emulator.as_ref() == Some(key) && is_on(value)));
    };
    let allow = K::named("allow_http");
    let said = options.iter().rev().find(|(key, _)| allow.as_ref() == Some(key));
    if said.is_some_and(|(_, value)| is_off(value)) {
        let shown = clean_url(address.trim());
        return Err(Error::invalid(format!(
            "the endpoint {shown} is not encrypted, which the option `allow_http` forbids"
        ))
        .with_remedy("give an endpoint that is https://, or leave `allow_http` out"));
    }
    Ok(true)
}

/// The error of a client for https on a machine without certificates.
pub(super) fn no_certificates(shown: &str, environment: &EnvVars) -> Error {
    let mut named = Vec::new();
    for variable in ["SSL_CERT_FILE", "SSL_CERT_DIR"] {
        named.extend(environment.get(variable).map(|path| format!("{variable}={path}")));
    }
    let place = if named.is_empty() {
        "this machine has no certificates of authorities".to_owned()
    } else {
        format!("there are no certificates of authorities in {}", named.join(" and "))
    };
    Error::invalid(format!("cannot connect to {shown} by https: {place}")).with_remedy(INSTALL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::aws::AmazonS3ConfigKey as S3;
    use object_store::azure::AzureConfigKey as Azure;
    use object_store::gcp::GoogleConfigKey as Google;

    fn plain<K: StoreKey>(options: &[(&str, &str)]) -> Result<bool> {
        let owned: Vec<(K, String)> =
            options.iter().map(|(name, value)| (K::named(name).unwrap(), (*value).to_owned())).collect();
        is_plain_http(&owned.iter().collect::<Vec<_>>())
    }

    #[test]
    fn the_endpoint_that_counts_decides() {
        for address in ["http://minio:9000", "HTTP://minio:9000/", "  http://minio"] {
            assert!(plain::<S3>(&[("endpoint", address)]).unwrap(), "{address}");
            assert!(plain::<Azure>(&[("endpoint", address)]).unwrap(), "{address}");
            assert!(plain::<Google>(&[("base_url", address)]).unwrap(), "{address}");
        }
        for address in ["https://minio:9000", "minio:9000", "", "httpä://x"] {
            assert!(!plain::<S3>(&[("endpoint", address)]).unwrap(), "{address}");
        }
        assert!(plain::<Azure>(&[("use_emulator", "true")]).unwrap());
        assert!(!plain::<Azure>(&[("use_emulator", "false")]).unwrap());
        assert!(!plain::<S3>(&[("metadata_endpoint", "http://169.254.169.254")]).unwrap(), "not the store's");
        assert!(plain::<S3>(&[("endpoint", "https://a"), ("aws_endpoint_url_s3", "http://b")]).unwrap());
        assert!(!plain::<S3>(&[("aws_endpoint_url_s3", "https://b"), ("endpoint", "http://a")]).unwrap());
        assert!(plain::<S3>(&[("endpoint", "https://a"), ("endpoint", "http://b")]).unwrap(), "the later one wins");
    }

    #[test]
    fn an_option_that_forbids_http_is_named() {
        let error = plain::<S3>(&[("allow_http", "false"), ("endpoint", "http://u:p4ssword@minio")]).unwrap_err();
        assert!(error.message().contains("`allow_http`") && error.message().contains("minio"), "{error}");
        assert!(!error.message().contains("p4ssword"), "{error}");
        assert!(plain::<S3>(&[("allow_http", "true"), ("endpoint", "http://minio")]).unwrap());
        assert!(!plain::<S3>(&[("allow_http", "false"), ("endpoint", "https://minio")]).unwrap());
    }

    #[test]
    fn missing_certificates_are_named_with_their_places() {
        let none = no_certificates("s3://b", &std::iter::empty().collect());
        assert!(none.message().contains("this machine") && none.message().contains("ca-certificates"), "{none}");
        let named = [("SSL_CERT_DIR".to_owned(), "/empty".to_owned())].into_iter().collect();
        assert!(no_certificates("s3://b", &named).message().contains("SSL_CERT_DIR=/empty"));
    }
}
