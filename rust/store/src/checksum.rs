//! The header by which an S3 store verifies a received object.
//!
//! Owns: its algorithm, and its omission for stores that refuse it.
//! Does not own: the header itself (`object_store`), the error of a store that refuses it (`diagnose`).

use super::env_vars::EnvVars;
use fastchangelog_format::error::{Error, Result, Subject};
use object_store::aws::AmazonS3ConfigKey as Key;

/// The storage option.
const OPTION: &str = "checksum_algorithm";
/// By which all SDKs of Amazon are told to leave the header out.
const VARIABLE: &str = "AWS_REQUEST_CHECKSUM_CALCULATION";

/// Takes what is said about the header out of the options that are `given` and those `beside` them; returns the options
/// that say the same to the client.
///
/// Without the header the signature still covers the SHA-256 of the content.
pub(super) fn header(
    given: &mut Vec<(Key, String)>,
    beside: &mut Vec<(Key, String)>,
    environment: &EnvVars,
) -> Result<Vec<(Key, String)>> {
    let said = taken(given);
    let by_environment = taken(beside).filter(|value| !value.trim().is_empty());
    let needed_only = environment.get(VARIABLE).is_some_and(|value| value.trim().eq_ignore_ascii_case("when_required"));
    let algorithm = match said.or(by_environment) {
        Some(value) => value.trim().to_ascii_lowercase(),
        None if needed_only => "none".to_owned(),
        None => "sha256".to_owned(),
    };
    match algorithm.as_str() {
        "sha256" | "crc64nvme" => Ok(vec![(Key::Checksum, algorithm)]),
        // A deletion of many objects always has the header; a deletion of one object never has it.
        "" | "none" | "off" | "false" => Ok(vec![(Key::DisableBulkDelete, "true".to_owned())]),
        other => Err(Error::invalid(format!("storage option `{OPTION}` = `{other}` is not an algorithm of S3 stores"))
            .with_remedy("write `sha256`, `crc64nvme`, or `none` for stores that refuse the header")
            .with_subject(Subject::Option(OPTION.to_owned()))),
    }
}

fn taken(options: &mut Vec<(Key, String)>) -> Option<String> {
    options.extract_if(.., |(key, _)| *key == Key::Checksum).map(|(_, value)| value).last()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(given: &[&str], beside: &[&str], variable: &str) -> Result<(Key, String)> {
        let own = |values: &[&str]| -> Vec<(Key, String)> {
            let region = [(Key::Region, "x".to_owned())];
            region.into_iter().chain(values.iter().map(|value| (Key::Checksum, (*value).to_owned()))).collect()
        };
        let (mut given, mut beside) = (own(given), own(beside));
        let environment = [(VARIABLE.to_owned(), variable.to_owned())].into_iter().collect();
        let mut said = header(&mut given, &mut beside, &environment)?;
        assert!(given.len() == 1 && beside.len() == 1, "what was said is taken out");
        assert_eq!(said.len(), 1);
        Ok(said.remove(0))
    }

    #[test]
    fn an_option_turns_the_checksum_header_off() {
        let sha256 = (Key::Checksum, "sha256".to_owned());
        let off = (Key::DisableBulkDelete, "true".to_owned());
        assert_eq!(chosen(&[], &[], "").unwrap(), sha256);
        for none in ["none", "NONE", "", " off ", "false"] {
            assert_eq!(chosen(&[none], &["sha256"], "").unwrap(), off, "{none}");
        }
        assert_eq!(chosen(&[], &["none"], "").unwrap(), off);
        assert_eq!(chosen(&[], &[""], "").unwrap(), sha256, "an empty variable says nothing");
        assert_eq!(chosen(&[], &[], "when_required").unwrap(), off);
        assert_eq!(chosen(&["sha256"], &[], "WHEN_REQUIRED").unwrap(), sha256, "the option wins");
        assert_eq!(chosen(&["CRC64NVME"], &["none"], "").unwrap().1, "crc64nvme");
        let error = chosen(&["md5"], &[], "").unwrap_err();
        assert!(
            error.message().contains("`checksum_algorithm` = `md5`") && error.message().contains("`none`"),
            "{error}"
        );
    }
}
