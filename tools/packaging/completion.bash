# _fsdp PROGRAM WORD PREVIOUS: completes WORD. bash takes the "=" of --option=value as a word.
_fsdp() {
  local program=${1##*/} word=$2 option=$3 values
  if [[ $word == = ]]; then
    word=
  elif [[ $option == = ]]; then
    option=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  option=--${option#--}
  values=${_fsdp_values["$program ${option//_/-}"]-}
  if [[ -z $values && $word == -* ]]; then values=${_fsdp_options[$program]}; fi
  case $values in
    '<any>') ;;
    '' | '<file>')
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -f -- "$word")
      ;;
    '<arch>') mapfile -t COMPREPLY < <(compgen -W "$(fsdp-train --list-archs 2>/dev/null | cut -d" " -f1)" -- "$word") ;;
    *) mapfile -t COMPREPLY < <(compgen -W "$values" -- "$word") ;;
  esac
}
